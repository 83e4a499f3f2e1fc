"""
Layouts of the messages and paths of the communication manager, and of private data of the RDMA IP CM service.

 - C{messages}: REQ, REP, RTU and the others; bytes of private data; reasons and statuses.
 - C{paths}: paths in these messages: conversion, reversal, comparison.
 - C{rejectinfo}: additional information of a REJ, an APR or a SIDR_REP, such as a redirection.
 - C{ipcm}: service IDs and private data of connections by IP address and port.
"""
