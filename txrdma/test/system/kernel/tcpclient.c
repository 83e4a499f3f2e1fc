/*
 * A program that knows TCP only: tcpclient HOST PORT BYTES, or tcpclient HOST PORT BYTES REQUEST.
 *
 * Without a request it sends so many bytes that count up, half-closes, and expects the same bytes
 * back. With one it sends that, and writes what comes to its output until the end.
 */
#include <arpa/inet.h>
#include <netinet/in.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

static char out[65536], in[65536];

static int fail(const char *what)
{
    perror(what);
    return 1;
}

/* Echo: both directions at once, by poll. */
static int echo(int fd, long total)
{
    long sent = 0, received = 0;

    while (received < total) {
        struct pollfd entry = {fd, sent < total ? POLLIN | POLLOUT : POLLIN, 0};

        if (poll(&entry, 1, 30000) <= 0)
            return fail("poll");
        if (entry.revents & POLLIN) {
            ssize_t count = recv(fd, in, sizeof in, 0);

            if (count <= 0)
                return fail("recv");
            for (ssize_t i = 0; i < count; i++)
                if ((unsigned char)in[i] != (unsigned char)((received + i) % 251)) {
                    printf("wrong byte %ld\n", received + i);
                    return 1;
                }
            received += count;
        } else if (entry.revents & POLLOUT) {
            long length = total - sent < (long)sizeof out ? total - sent : (long)sizeof out;
            ssize_t count;

            for (long i = 0; i < length; i++)
                out[i] = (char)((sent + i) % 251);
            count = send(fd, out, length, 0);
            if (count < 0)
                return fail("send");
            sent += count;
        } else
            return fail("revents");
    }
    if (shutdown(fd, SHUT_WR))
        return fail("shutdown");
    if (recv(fd, in, sizeof in, 0) != 0)
        return fail("end of file");
    printf("echoed %ld bytes\n", received);
    return 0;
}

static int get(int fd, const char *request)
{
    ssize_t count;

    if (send(fd, request, strlen(request), 0) < 0)
        return fail("send");
    while ((count = recv(fd, in, sizeof in, 0)) > 0)
        fwrite(in, 1, count, stdout);
    return count < 0 ? fail("recv") : 0;
}

int main(int count, char **words)
{
    struct sockaddr_in address = {.sin_family = AF_INET};
    int fd, status;

    if (count < 4)
        return 2;
    address.sin_port = htons(atoi(words[2]));
    if (inet_pton(AF_INET, words[1], &address.sin_addr) != 1)
        return 2;
    fd = socket(AF_INET, SOCK_STREAM, 0);
    if (fd < 0)
        return fail("socket");
    if (connect(fd, (struct sockaddr *)&address, sizeof address))
        return fail("connect");
    status = count > 4 ? get(fd, words[4]) : echo(fd, atol(words[3]));
    if (close(fd))
        return fail("close");
    return status;
}
