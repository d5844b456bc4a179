/* Does what its arguments say, one after the other: what jobs do in tests. */
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

/* Adds a line to a file, in one write. */
static void mark(const char *path, const char *word) {
    char line[256];
    int count = snprintf(line, sizeof line, "%s\n", word);
    int fd = open(path, O_WRONLY | O_CREAT | O_APPEND, 0644);
    if (fd < 0 || write(fd, line, count) != count) { perror(path); exit(90); }
    close(fd);
}

static void await_file(const char *path) {
    struct timespec pause = {0, 5 * 1000 * 1000};
    while (access(path, F_OK) != 0) nanosleep(&pause, 0);
}

int main(int argc, char **argv) {
    for (int i = 1; i < argc; i++) {
        const char *what = argv[i], *a = i + 1 < argc ? argv[i + 1] : "";
        if (!strcmp(what, "mark")) { mark(a, argv[i + 2]); i += 2; }
        else if (!strcmp(what, "print")) { printf("%s\n", a); fflush(stdout); i++; }
        else if (!strcmp(what, "complain")) { fprintf(stderr, "%s\n", a); i++; }
        else if (!strcmp(what, "await")) { await_file(a); i++; }
        else if (!strcmp(what, "need")) { if (access(a, F_OK) != 0) return 1; i++; }
        else if (!strcmp(what, "getenv")) { printf("%s\n", getenv(a)); i++; }
        else if (!strcmp(what, "exit")) return atoi(a);
        else if (!strcmp(what, "abort")) __builtin_trap();
        else if (!strcmp(what, "loop")) for (volatile unsigned n = 0;; n++) {}
        else return 99;
    }
    return 0;
}
