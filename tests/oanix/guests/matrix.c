/* Tries the calls of WASI preview 1 in every combination, and prints what each gives.

   Names end in a slash, in dots, at links and nowhere; the tree is made anew after each change. */
#pragma clang diagnostic ignored "-Wunused-result"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <wasi/api.h>

#define ALL 0x1fffffffull
#define R(name) __WASI_RIGHTS_##name
#define COUNT(list) (sizeof list / sizeof *list)

static __wasi_fd_t root = 3;
static const char *FILES[] = {"file", "full/inside", "other"};
static const char *DIRECTORIES[] = {"empty", "full", "hollow"};
static const char *LINKS[][2] = {{"file", "link"}, {"full", "fulllink"}, {"nowhere", "dangling"},
                                 {"loop", "loop"}, {"../out", "out"}, {"full/inside", "deep"},
                                 {"link", "twice"}};
static const char *NAMES[] = {
    "none", "none/", "file", "file/", "file/x", "file/.", "empty", "empty/", "full", "full/",
    "full/inside", "link", "link/", "fulllink", "fulllink/", "fulllink/inside", "dangling",
    "dangling/", "dangling/x", "loop", "loop/", "loop/x", "out", "deep", "twice", ".", "./", "..",
    "../", "full/..", "full/../file", "full/../../x", "empty/.", "", "/", "/file", ".//file",
    "none/..", "none/../file", "fulllink/../file",
};
static const char *PAIRS[] = {
    "none", "none/", "file", "file/", "other", "empty", "empty/", "hollow", "full", "full/",
    "full/inside", "full/new", "link", "fulllink", "fulllink/", "dangling", "loop", ".", "..",
    "empty/.", "", "/file", "none/x", "file/x",
};

static void put(const char *path) {
    __wasi_fd_t fd;
    __wasi_ciovec_t text = {(const uint8_t *)"12345", 5};
    __wasi_size_t done;
    __wasi_path_open(root, 0, path, __WASI_OFLAGS_CREAT, R(FD_WRITE), 0, 0, &fd);
    __wasi_fd_write(fd, &text, 1, &done);
    __wasi_fd_close(fd);
}

static void clear_directory(const char *path) {
    uint8_t buffer[2048];
    __wasi_fd_t fd = root;
    __wasi_size_t used;
    if (*path && __wasi_path_open(root, 0, path, __WASI_OFLAGS_DIRECTORY, R(FD_READDIR), ALL, 0, &fd))
        return;
    __wasi_fd_readdir(fd, buffer, sizeof buffer, 0, &used);
    for (size_t at = 0; at + 24 <= used;) {
        __wasi_dirent_t entry;
        char name[64] = {0}, below[128];
        memcpy(&entry, buffer + at, 24);
        memcpy(name, buffer + at + 24, entry.d_namlen);
        at += 24 + entry.d_namlen;
        if (!strcmp(name, ".") || !strcmp(name, "..")) continue;
        snprintf(below, sizeof below, "%s%s%s", path, *path ? "/" : "", name);
        if (entry.d_type == __WASI_FILETYPE_DIRECTORY) {
            clear_directory(below);
            __wasi_path_remove_directory(root, below);
        } else
            __wasi_path_unlink_file(root, below);
    }
    if (*path) __wasi_fd_close(fd);
}

static void reset(void) {
    clear_directory("");
    for (size_t i = 0; i < COUNT(DIRECTORIES); i++) __wasi_path_create_directory(root, DIRECTORIES[i]);
    for (size_t i = 0; i < COUNT(FILES); i++) put(FILES[i]);
    for (size_t i = 0; i < COUNT(LINKS); i++) __wasi_path_symlink(LINKS[i][0], root, LINKS[i][1]);
}

/* Undoes what opening a file can do. */
static void mend(void) {
    __wasi_path_unlink_file(root, "none");
    __wasi_path_unlink_file(root, "nowhere");
    put("file");
    put("full/inside");
}

static void opening(void) {
    static const __wasi_rights_t RIGHTS[] = {0, R(FD_READ), R(FD_WRITE), R(FD_READ) | R(FD_WRITE)};
    static const int FLAGS[] = {0, __WASI_FDFLAGS_APPEND, __WASI_FDFLAGS_NONBLOCK};
    for (size_t n = 0; n < COUNT(NAMES); n++)
        for (int lookup = 0; lookup < 2; lookup++)
            for (int oflags = 0; oflags < 16; oflags++)
                for (size_t r = 0; r < COUNT(RIGHTS); r++)
                    for (size_t f = 0; f < COUNT(FLAGS); f++) {
                        __wasi_fd_t fd;
                        __wasi_filestat_t found = {0};
                        int error = __wasi_path_open(root, lookup, NAMES[n], oflags,
                                                     RIGHTS[r] | R(FD_FILESTAT_GET), ALL,
                                                     FLAGS[f], &fd);
                        printf("open %s follow=%d oflags=%d rights=%d flags=%d: %d", NAMES[n], lookup,
                               oflags, (int)r, FLAGS[f], error);
                        if (error) {
                            puts("");
                            continue;
                        }
                        __wasi_fd_filestat_get(fd, &found);
                        printf(" type=%d size=%d\n", found.filetype,
                               found.filetype == 4 ? (int)found.size : 0);
                        __wasi_fd_close(fd);
                        if (oflags & (__WASI_OFLAGS_CREAT | __WASI_OFLAGS_TRUNC)) mend();
                    }
}

static void pairs(void) {
    for (size_t a = 0; a < COUNT(PAIRS); a++)
        for (size_t b = 0; b < COUNT(PAIRS); b++)
            for (int what = 0; what < 3; what++) {
                const char *names[] = {"rename", "link", "link-follow"};
                int error = what ? __wasi_path_link(root, what - 1, PAIRS[a], root, PAIRS[b])
                                 : __wasi_path_rename(root, PAIRS[a], root, PAIRS[b]);
                printf("%s %s %s: %d\n", names[what], PAIRS[a], PAIRS[b], error);
                if (!error) reset();
            }
}

static void single(const char *name) {
    uint8_t buffer[16] = "...............";
    __wasi_size_t used = 0;
    __wasi_filestat_t found = {0};
    for (int lookup = 0; lookup < 2; lookup++) {
        int error = __wasi_path_filestat_get(root, lookup, name, &found);
        printf("stat %s follow=%d: %d type=%d size=%d\n", name, lookup, error,
               error ? 0 : found.filetype, error || found.filetype == 3 ? 0 : (int)found.size);
        for (int flags = 0; flags < 16; flags++)
            printf("times %s follow=%d flags=%d: %d\n", name, lookup, flags,
                   __wasi_path_filestat_set_times(root, lookup, name, 1000, 2000, flags));
        if (!__wasi_path_filestat_set_times(root, lookup, name, 5000000000, 7000000000, 5)) {
            __wasi_path_filestat_get(root, lookup, name, &found);
            printf("times set %s: %lld %lld\n", name, (long long)found.atim, (long long)found.mtim);
        }
    }
    for (int size = 0; size < 12; size += 3) {
        int error = __wasi_path_readlink(root, name, buffer, size, &used);
        printf("readlink %s %d: %d %d %.*s\n", name, size, error, error ? 0 : (int)used,
               error ? 0 : (int)used, buffer);
    }
    int error = __wasi_path_unlink_file(root, name);
    printf("unlink %s: %d\n", name, error);
    if (!error) reset();
    printf("rmdir %s: %d\n", name, error = __wasi_path_remove_directory(root, name));
    if (!error) reset();
    printf("mkdir %s: %d\n", name, error = __wasi_path_create_directory(root, name));
    if (!error) reset();
    static const char *TARGETS[] = {"file", "nowhere/", "../up", "/absolute", ""};
    for (size_t t = 0; t < COUNT(TARGETS); t++) {
        printf("symlink %s %s: %d\n", TARGETS[t], name, error = __wasi_path_symlink(TARGETS[t], root, name));
        if (!error) reset();
    }
    printf("open below %s: ", name);
    __wasi_fd_t fd, inner;
    if (!__wasi_path_open(root, 1, name, 0, R(FD_READ), ALL, 0, &fd)) {
        printf("%d", __wasi_path_open(fd, 0, "inside", 0, R(FD_READ), ALL, 0, &inner));
        __wasi_fd_close(fd);
    }
    puts("");
}

static void content(const char *kind, __wasi_fd_t fd) {
    static const __wasi_filedelta_t DELTAS[] = {0, 3, -1, -100, 100};
    static const __wasi_filesize_t SIZES[] = {0, 1, 7, 1ull << 63};
    uint8_t bytes[8] = {0};
    __wasi_iovec_t in[1] = {{bytes, 4}};
    __wasi_ciovec_t out[1] = {{(const uint8_t *)"abc", 3}};
    __wasi_filesize_t at = 0;
    __wasi_size_t done = 0;
    __wasi_filestat_t found = {0};
    int error;
#define SHOW(what, call, value) \
    (error = (call), printf("%s of %s: %d %lld\n", what, kind, error, error ? 0LL : (long long)(value)))
    for (int whence = 0; whence < 3; whence++)
        for (size_t d = 0; d < COUNT(DELTAS); d++)
            SHOW("seek", __wasi_fd_seek(fd, DELTAS[d], whence, &at), at);
    SHOW("seek to 1", __wasi_fd_seek(fd, 1, 0, &at), at);
    SHOW("tell", __wasi_fd_tell(fd, &at), at);
    SHOW("read", __wasi_fd_read(fd, in, 1, &done), done);
    SHOW("read nothing", __wasi_fd_read(fd, in, 0, &done), done);
    SHOW("pread", __wasi_fd_pread(fd, in, 1, 2, &done), done);
    SHOW("pread far", __wasi_fd_pread(fd, in, 1, 1000, &done), done);
    SHOW("pread negative", __wasi_fd_pread(fd, in, 1, 1ull << 63, &done), done);
    SHOW("seek to 2", __wasi_fd_seek(fd, 2, 0, &at), at);
    SHOW("write", __wasi_fd_write(fd, out, 1, &done), done);
    SHOW("write nothing", __wasi_fd_write(fd, out, 0, &done), done);
    SHOW("tell", __wasi_fd_tell(fd, &at), at);
    SHOW("pwrite", __wasi_fd_pwrite(fd, out, 1, 12, &done), done);
    SHOW("pwrite negative", __wasi_fd_pwrite(fd, out, 1, 1ull << 63, &done), done);
    SHOW("tell", __wasi_fd_tell(fd, &at), at);
    SHOW("stat", __wasi_fd_filestat_get(fd, &found), found.filetype == 4 ? found.size : 0);
    for (size_t s = 0; s < COUNT(SIZES); s++) {
        SHOW("set size", __wasi_fd_filestat_set_size(fd, SIZES[s]), SIZES[s]);
        for (size_t o = 0; o < COUNT(SIZES); o++)
            for (int advice = 0; advice < 6; advice += 5)
                SHOW("advise", __wasi_fd_advise(fd, SIZES[s], SIZES[o], advice), 0);
        SHOW("stat", __wasi_fd_filestat_get(fd, &found), found.filetype == 4 ? found.size : 0);
    }
    for (int flags = 0; flags < 16; flags++)
        SHOW("times", __wasi_fd_filestat_set_times(fd, 1000, 2000, flags), flags);
    SHOW("sync", __wasi_fd_sync(fd), 0);
    SHOW("datasync", __wasi_fd_datasync(fd), 0);
    uint8_t listed[256];
    SHOW("readdir", __wasi_fd_readdir(fd, listed, sizeof listed, 0, &done), done);
    SHOW("readdir far", __wasi_fd_readdir(fd, listed, sizeof listed, 1000, &done), done);
    __wasi_prestat_t given;
    SHOW("prestat", __wasi_fd_prestat_get(fd, &given), 0);
    SHOW("prestat name", __wasi_fd_prestat_dir_name(fd, listed, sizeof listed), 0);
    __wasi_fdstat_t state = {0};
    for (int flags = 0; flags < 8; flags++) {
        if (flags & __WASI_FDFLAGS_DSYNC) continue;
        SHOW("set flags", __wasi_fd_fdstat_set_flags(fd, flags), flags);
        SHOW("flags", __wasi_fd_fdstat_get(fd, &state), state.fs_flags);
    }
    SHOW("below", __wasi_path_filestat_get(fd, 0, "inside", &found), found.filetype);
    SHOW("rename below", __wasi_path_rename(fd, "inside", fd, "inside"), 0);
    SHOW("close", __wasi_fd_close(fd), 0);
    SHOW("close again", __wasi_fd_close(fd), 0);
}

static void descriptors(void) {
    static const struct { const char *kind, *name; __wasi_rights_t rights; int flags; } KINDS[] = {
        {"reader", "file", R(FD_READ), 0},
        {"writer", "file", R(FD_WRITE), 0},
        {"both", "file", R(FD_READ) | R(FD_WRITE), 0},
        {"appender", "file", R(FD_READ) | R(FD_WRITE), __WASI_FDFLAGS_APPEND},
        {"directory", "full", R(FD_READ), 0},
    };
    for (size_t k = 0; k < COUNT(KINDS); k++) {
        __wasi_fd_t fd = 77;
        __wasi_rights_t rest = ALL & ~(R(FD_READ) | R(FD_WRITE));
        __wasi_path_open(root, 0, KINDS[k].name, 0, KINDS[k].rights | rest, ALL, KINDS[k].flags, &fd);
        content(KINDS[k].kind, fd);
        reset();
    }
    content("closed", 77);
}

static void unlinked(void) {
    __wasi_fd_t file, directory, other;
    __wasi_filestat_t found;
    __wasi_path_open(root, 0, "file", 0, R(FD_READ) | R(FD_FILESTAT_GET), ALL, 0, &file);
    __wasi_path_open(root, 0, "empty", __WASI_OFLAGS_DIRECTORY, 0, ALL, 0, &directory);
    printf("gone: unlink %d rmdir %d\n", __wasi_path_unlink_file(root, "file"),
           __wasi_path_remove_directory(root, "empty"));
    printf("gone: stat %d", __wasi_fd_filestat_get(file, &found));
    printf(" size %d links %d\n", (int)found.size, (int)found.nlink);
    printf("gone: create below %d\n",
           __wasi_path_open(directory, 0, "x", __WASI_OFLAGS_CREAT, R(FD_READ), 0, 0, &other));
    printf("gone: mkdir below %d\n", __wasi_path_create_directory(directory, "x"));
    printf("gone: rename into %d\n", __wasi_path_rename(root, "other", directory, "x"));
    printf("gone: link into %d\n", __wasi_path_link(root, 0, "other", directory, "x"));
    printf("gone: symlink into %d\n", __wasi_path_symlink("x", directory, "x"));
    printf("gone: close %d %d\n", __wasi_fd_close(file), __wasi_fd_close(directory));
    reset();
}

static void renumbering(void) {
    __wasi_fd_t one = 0, two = 0, found[4];
    for (int i = 0; i < 4; i++)
        __wasi_path_open(root, 0, "file", 0, R(FD_READ), ALL, 0, &found[i]);
    one = found[0], two = found[1];
    printf("renumber: to itself %d\n", __wasi_fd_renumber(one, one));
    printf("renumber: %d\n", __wasi_fd_renumber(one, two));
    printf("renumber: from closed %d\n", __wasi_fd_renumber(one, two));
    printf("renumber: close %d %d\n", __wasi_fd_close(one), __wasi_fd_close(two));
    for (int i = 2; i < 4; i++) __wasi_fd_close(found[i]);
    reset();
}

int main(void) {
    setvbuf(stdout, NULL, _IOFBF, 1 << 20);
    reset();
    opening();
    pairs();
    for (size_t n = 0; n < COUNT(NAMES); n++) single(NAMES[n]);
    descriptors();
    unlinked();
    renumbering();
    clear_directory("");
    return 0;
}
