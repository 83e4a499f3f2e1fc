"""Output and input formats: tables of devices, dot, C{ibnetdiscover}'s listing, snapshots."""
