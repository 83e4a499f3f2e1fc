"""
Checks of this host and of its RDMA devices, for C{txrdma doctor} and C{txrdma verify}.

Nothing on the host is changed. Modules, lowest first:

  - of the host: C{problems}, C{host}, C{deviceports}, C{environment}
  - of devices: C{checks}, C{subject}, C{transports}; C{suites}, C{streams}, C{serving}, C{measuring},
    C{perftest}; C{worker} runs them in a process, and C{supervisor} runs workers
  - C{quirks}, C{report}
"""
