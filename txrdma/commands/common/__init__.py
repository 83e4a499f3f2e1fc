"""What several commands share: options, choice of devices, sessions with a fabric, tables."""
