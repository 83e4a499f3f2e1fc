"""
Checks of this host and of its RDMA devices, for C{txrdma doctor} and C{txrdma verify}.

Nothing on the host is changed. Modules of the checks of the host, lowest first: C{problems}, C{host},
C{deviceports}, C{environment}; of the devices: C{checks}, C{subject}, C{transports}; C{suites}, C{streams},
C{serving}, C{measuring}; C{worker} runs them in a process, C{supervisor} runs workers; C{quirks}, C{report}.
"""
