/*
 * Preloaded into a program that knows nothing of SMC: its TCP sockets of IPv4 become sockets of AF_SMC.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <netinet/in.h>
#include <sys/socket.h>

#ifndef AF_SMC
#define AF_SMC 43
#endif

int socket(int family, int type, int protocol)
{
    static int (*ordinary)(int, int, int);
    int kind = type & ~(SOCK_CLOEXEC | SOCK_NONBLOCK);

    if (!ordinary)
        ordinary = (int (*)(int, int, int))dlsym(RTLD_NEXT, "socket");
    if (family == AF_INET && kind == SOCK_STREAM && (protocol == 0 || protocol == IPPROTO_TCP))
        return ordinary(AF_SMC, type, 0);
    return ordinary(family, type, protocol);
}
