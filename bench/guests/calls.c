/* Makes one kind of call again and again, and prints how many nanoseconds one takes. */
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

static const char *path = "/data/a/b/c/file";
static char buffer[1 << 16];

static double nanoseconds(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return now.tv_sec * 1e9 + now.tv_nsec;
}

int main(int argc, char **argv) {
    const char *what = argc > 2 ? argv[1] : "";
    int count = argc > 2 ? atoi(argv[2]) : 0, bad = 0;
    int fd = open(path, O_RDWR);
    struct stat found;
    double started = nanoseconds();
    if (!strcmp(what, "stat"))
        for (int i = 0; i < count; i++) bad |= stat(path, &found);
    if (!strcmp(what, "open"))
        for (int i = 0; i < count; i++) bad |= close(open(path, O_RDONLY));
    if (!strcmp(what, "read"))
        for (int i = 0; i < count; i++) bad |= pread(fd, buffer, sizeof buffer, 0) != sizeof buffer;
    if (!strcmp(what, "write"))
        for (int i = 0; i < count; i++) bad |= pwrite(fd, buffer, sizeof buffer, 0) != sizeof buffer;
    if (!strcmp(what, "loop"))
        for (volatile unsigned i = 0;; i++) {}
    printf("%.0f\n", (nanoseconds() - started) / count);
    return bad;
}
