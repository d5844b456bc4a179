/* A program of many small ones: the first argument names what it does. */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

extern char **environ;

static void report(const char *what, int result) {
    printf("%s=%s\n", what, result < 0 ? strerror(errno) : "ok");
}

static int show(int argc, char **argv) {
    for (int i = 0; i < argc; i++) printf("arg[%s]\n", argv[i]);
    for (char **e = environ; *e; e++) printf("env[%s]\n", *e);
    return 0;
}

static int copy(void) {
    char buffer[4096];
    ssize_t count;
    while ((count = read(0, buffer, sizeof buffer)) > 0) write(1, buffer, count);
    return count < 0;
}

static int list(const char *path) {
    DIR *directory = opendir(path);
    if (!directory) { report("opendir", -1); return 1; }
    for (struct dirent *entry; (entry = readdir(directory));)
        printf("%s %d\n", entry->d_name, entry->d_type == DT_DIR);
    return closedir(directory);
}

static int cat(const char *path) {
    int fd = open(path, O_RDONLY);
    if (fd < 0) { report("open", fd); return 1; }
    char buffer[4096];
    fflush(stdout);
    for (ssize_t n; (n = read(fd, buffer, sizeof buffer)) > 0;) write(1, buffer, n);
    return 0;
}

static int put(const char *path, const char *text) {
    int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC, 0644);
    if (fd < 0) { report("open", fd); return 1; }
    if (write(fd, text, strlen(text)) < 0) { report("write", -1); return 1; }
    return close(fd);
}

static int change(const char *directory) {
    char a[256], b[256];
    snprintf(a, sizeof a, "%s/old", directory);
    snprintf(b, sizeof b, "%s/new", directory);
    report("create", open(b, O_WRONLY | O_CREAT, 0644));
    report("unlink", unlink(a));
    report("rename", rename(a, b));
    report("mkdir", mkdir(b, 0755));
    report("truncate", open(a, O_WRONLY | O_TRUNC));
    struct timespec times[2] = {{1, 0}, {2, 0}};
    report("utimens", utimensat(AT_FDCWD, a, times, 0));
    report("symlink", symlink("old", b));
    return cat(a);
}

static int cross(const char *from, const char *to) {
    report("rename", rename(from, to));
    report("link", link(from, to));
    return 0;
}

static int unlinked(const char *path) {
    int fd = open(path, O_RDWR | O_CREAT, 0644);
    write(fd, "still here", 10);
    unlink(path);
    lseek(fd, 0, SEEK_SET);
    char buffer[32] = {0};
    read(fd, buffer, sizeof buffer);
    puts(buffer);
    report("again", open(path, O_RDONLY));
    return 0;
}

static int append(const char *path) {
    int one = open(path, O_WRONLY | O_CREAT | O_APPEND, 0644);
    int two = open(path, O_WRONLY | O_APPEND);
    write(one, "a", 1), write(two, "b", 1), write(one, "c", 1), write(two, "d", 1);
    return cat(path);
}

static int sparse(const char *path) {
    int fd = open(path, O_RDWR | O_CREAT, 0644);
    pwrite(fd, "x", 1, 9);
    ftruncate(fd, 12);
    char buffer[16];
    ssize_t count = pread(fd, buffer, sizeof buffer, 0);
    for (ssize_t i = 0; i < count; i++) printf("%02x", buffer[i]);
    puts("");
    return 0;
}

static int depth(int n) {
    volatile char frame[256];
    frame[0] = (char)n;
    return n == -1 ? frame[0] : depth(n + 1) + frame[0];
}

static int flood(size_t bytes) {
    static char line[1024];
    memset(line, 'x', sizeof line);
    for (size_t done = 0; done < bytes; done += sizeof line)
        if (write(1, line, sizeof line) != sizeof line) return 1;
    return 0;
}

static int grow(const char *path) {
    size_t size = 40 << 20;
    char *block = malloc(size);
    if (!block) { puts("no memory"); return 0; }
    int fd = open(path, O_RDWR | O_CREAT, 0644);
    memcpy(block + size - 5, "tail", 5);
    pwrite(fd, block + size - 5, 5, 0);
    memset(block + size - 5, 0, 5);
    pread(fd, block + size - 5, 5, 0);
    puts(block + size - 5);
    return 0;
}

static int ask(const char *path, const char *request) {
    int fd = open(path, O_RDWR);
    if (fd < 0) { report("open", fd); return 1; }
    write(fd, "", 0);
    if (write(fd, request, strlen(request)) < 0) { report("write", -1); return 1; }
    char buffer[256];
    ssize_t count = read(fd, buffer, sizeof buffer);
    write(1, buffer, count);
    return 0;
}

static int chance(void) {
    unsigned char bytes[8];
    getentropy(bytes, sizeof bytes);
    for (int i = 0; i < 8; i++) printf("%02x", bytes[i]);
    struct timespec one, two;
    clock_gettime(CLOCK_REALTIME, &one);
    clock_gettime(CLOCK_REALTIME, &two);
    printf(" %lld %d\n", (long long)one.tv_sec,
           two.tv_sec > one.tv_sec || two.tv_nsec >= one.tv_nsec);
    return 0;
}

int main(int argc, char **argv) {
    const char *what = argc > 1 ? argv[1] : "show";
    const char *a = argc > 2 ? argv[2] : "", *b = argc > 3 ? argv[3] : "";
    if (!strcmp(what, "show")) return show(argc, argv);
    if (!strcmp(what, "exit")) return atoi(a);
    if (!strcmp(what, "copy")) return copy();
    if (!strcmp(what, "list")) return list(a);
    if (!strcmp(what, "cat")) return cat(a);
    if (!strcmp(what, "put")) return put(a, b);
    if (!strcmp(what, "change")) return change(a);
    if (!strcmp(what, "cross")) return cross(a, b);
    if (!strcmp(what, "unlinked")) return unlinked(a);
    if (!strcmp(what, "append")) return append(a);
    if (!strcmp(what, "sparse")) return sparse(a);
    if (!strcmp(what, "abort")) __builtin_trap();
    if (!strcmp(what, "recurse")) return depth(0);
    if (!strcmp(what, "loop")) for (volatile unsigned i = 0;; i++) {}
    if (!strcmp(what, "flood")) return flood(strtoul(a, 0, 10));
    if (!strcmp(what, "grow")) return grow(a);
    if (!strcmp(what, "ask")) return ask(a, b);
    if (!strcmp(what, "chance")) return chance();
    return 99;
}
