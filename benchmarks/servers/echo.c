/* The least that a server can do with a request: receive it, and send it back, in one epoll loop.
 *
 *     cc -O2 -o echo echo.c && ./echo [FILE]
 *
 * With FILE, it first appends the bytes that it received to that file. Prints `ready native=127.0.0.1:PORT`, and serves
 * until it is ended. */

#include <arpa/inet.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

#define RECEIVE_BYTES (1 << 16)
#define EVENTS 64

static void fail(const char *what)
{
    perror(what);
    exit(1);
}

static void watch(int poll, int fd)
{
    struct epoll_event event = {.events = EPOLLIN, .data.fd = fd};
    if (epoll_ctl(poll, EPOLL_CTL_ADD, fd, &event) < 0)
        fail("epoll_ctl");
}

int main(int count, char **arguments)
{
    static char buffer[RECEIVE_BYTES];
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t length = sizeof address;
    int file = -1;
    if (count > 1 && (file = open(arguments[1], O_WRONLY | O_CREAT | O_APPEND, 0600)) < 0)
        fail(arguments[1]);
    int listener = socket(AF_INET, SOCK_STREAM, 0);
    if (listener < 0 || bind(listener, (struct sockaddr *)&address, length) < 0 || listen(listener, 1024) < 0
        || getsockname(listener, (struct sockaddr *)&address, &length) < 0)
        fail("listen");
    int poll = epoll_create1(0);
    watch(poll, listener);
    printf("ready native=127.0.0.1:%d\n", ntohs(address.sin_port));
    fflush(stdout);
    for (;;) {
        struct epoll_event events[EVENTS];
        int ready = epoll_wait(poll, events, EVENTS, -1);
        for (int at = 0; at < ready; at++) {
            int fd = events[at].data.fd;
            if (fd == listener) {
                int connection = accept(listener, NULL, NULL);
                if (connection >= 0)
                    watch(poll, connection);
                continue;
            }
            ssize_t received = recv(fd, buffer, sizeof buffer, 0);
            if (received <= 0) {
                close(fd);
                continue;
            }
            if (file >= 0 && write(file, buffer, received) != received)
                fail("write");
            if (send(fd, buffer, received, MSG_NOSIGNAL) != received)
                close(fd);
        }
    }
}
