/* A slow disk: preloaded, it delays every write and fsync of files whose path contains $SLOW_DISK by 0.2 s. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

static void delay(int fd)
{
    const char *slow = getenv("SLOW_DISK");
    char link[64], path[PATH_MAX + 1];
    struct timespec pause = {0, 200000000};
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    ssize_t length = readlink(link, path, PATH_MAX);
    if (!slow || length < 0)
        return;
    path[length] = 0;
    if (strstr(path, slow))
        nanosleep(&pause, NULL);
}

#define SLOW(result, name, declared, given)                                                                            \
    result name declared                                                                                               \
    {                                                                                                                  \
        static result(*real) declared;                                                                                 \
        if (!real)                                                                                                     \
            real = (result(*) declared)dlsym(RTLD_NEXT, #name);                                                        \
        delay(fd);                                                                                                     \
        return real given;                                                                                             \
    }

SLOW(ssize_t, write, (int fd, const void *data, size_t size), (fd, data, size))
SLOW(ssize_t, pwrite, (int fd, const void *data, size_t size, off_t at), (fd, data, size, at))
SLOW(ssize_t, pwrite64, (int fd, const void *data, size_t size, off64_t at), (fd, data, size, at))
SLOW(int, fsync, (int fd), (fd))
