/* Checks of WASI preview 1 itself, by its own calls; prints the checks that fail. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <wasi/api.h>

static __wasi_fd_t root;
static int checks, failures;

static void check(int line, const char *what, int got, int wanted) {
    checks++;
    if (got == wanted) return;
    printf("line %d: %s gives %d, not %d\n", line, what, got, wanted);
    failures++;
}

#define IS(call, wanted) check(__LINE__, #call, (int)(call), (int)(wanted))
#define OK(call) IS(call, 0)
#define R(name) __WASI_RIGHTS_##name
#define E(name) __WASI_ERRNO_##name
#define CREAT __WASI_OFLAGS_CREAT
#define DIRECTORY __WASI_OFLAGS_DIRECTORY
#define EXCL __WASI_OFLAGS_EXCL
#define TRUNC __WASI_OFLAGS_TRUNC
#define FOLLOW __WASI_LOOKUPFLAGS_SYMLINK_FOLLOW
#define ALL 0xffffffffffffffffull
#define BOTH (R(FD_READ) | R(FD_WRITE) | R(FD_SEEK) | R(FD_TELL) | R(FD_FILESTAT_GET) | \
              R(FD_FDSTAT_SET_FLAGS) | R(FD_FILESTAT_SET_SIZE) | R(FD_FILESTAT_SET_TIMES) | R(FD_ALLOCATE))

static __wasi_fd_t last;

/* path_open with the path's length, for names with a zero byte. */
int32_t open_bytes(int32_t fd, int32_t lookup, const char *path, size_t length, int32_t flags,
                   int64_t rights, int64_t inheriting, int32_t fdflags, __wasi_fd_t *opened)
    __attribute__((import_module("wasi_snapshot_preview1"), import_name("path_open")));

static int open_at(const char *path, int flags, __wasi_rights_t rights, int fdflags, int lookup) {
    return __wasi_path_open(root, lookup, path, flags, rights, ALL, fdflags, &last);
}

static int opens(const char *path, int flags, __wasi_rights_t rights) {
    int result = open_at(path, flags, rights, 0, 0);
    if (result == 0) __wasi_fd_close(last);
    return result;
}

static __wasi_fd_t opened(const char *path, int flags, __wasi_rights_t rights) {
    OK(open_at(path, flags, rights, 0, 0));
    return last;
}

static void make(const char *path) { OK(opens(path, CREAT, R(FD_READ))); }

static int put(__wasi_fd_t fd, const char *text) {
    __wasi_ciovec_t vector = {(const uint8_t *)text, strlen(text)};
    __wasi_size_t count;
    return __wasi_fd_write(fd, &vector, 1, &count);
}

static int get(__wasi_fd_t fd, char *buffer, size_t length, size_t *count) {
    __wasi_iovec_t vector = {(uint8_t *)buffer, length};
    __wasi_size_t got = 0;
    int result = __wasi_fd_read(fd, &vector, 1, &got);
    *count = got;
    return result;
}

static __wasi_filestat_t stat_of(const char *path, int lookup) {
    __wasi_filestat_t found = {0};
    OK(__wasi_path_filestat_get(root, lookup, path, &found));
    return found;
}

static void opening(void) {
    IS(opens("none", 0, R(FD_READ)), E(NOENT));
    IS(opens("none", TRUNC, R(FD_WRITE)), E(NOENT));
    IS(opens("none", DIRECTORY, 0), E(NOENT));
    IS(opens("none/", CREAT, R(FD_READ)), E(ISDIR));
    IS(opens("", CREAT, R(FD_READ)), E(NOENT));
    IS(open_bytes(root, 0, "x\0", 2, CREAT, 0, 0, 0, &last), E(INVAL));
    IS(open_bytes(root, 0, "x\0y", 3, CREAT, 0, 0, 0, &last), E(INVAL));
    IS(opens("x", 0, 0), E(NOENT));
    IS(opens("/f", CREAT, R(FD_READ)), E(NOTCAPABLE));
    IS(opens("../f", CREAT, R(FD_READ)), E(NOTCAPABLE));
    IS(opens("f", CREAT | DIRECTORY, R(FD_READ)), E(INVAL));
    OK(opens("f", CREAT | EXCL, R(FD_READ)));
    IS(opens("f", CREAT | EXCL, R(FD_READ)), E(EXIST));
    OK(opens("f", CREAT, R(FD_READ)));
    OK(opens("f", EXCL, R(FD_READ)));
    IS(opens("f", DIRECTORY, R(FD_READ)), E(NOTDIR));
    IS(opens("f/", 0, R(FD_READ)), E(NOTDIR));
    IS(opens("f/g", CREAT, R(FD_READ)), E(NOTDIR));
    OK(__wasi_path_create_directory(root, "d"));
    IS(__wasi_path_create_directory(root, "d"), E(EXIST));
    OK(opens("d", DIRECTORY, R(FD_READ)));
    OK(opens("d///", 0, 0));
    IS(opens("d", 0, R(FD_READ) | R(FD_WRITE)), E(ISDIR));
    IS(opens("d", TRUNC, R(FD_READ)), E(ISDIR));
    IS(opens("d", CREAT, R(FD_READ)), E(ISDIR));
    make("d/./../d//g");
    OK(opens("d/.//../d/g", 0, 0));
    __wasi_fd_t fd = opened("f", 0, BOTH);
    OK(put(fd, "12345"));
    OK(opens("f", TRUNC, 0));
    IS(stat_of("f", 0).size, 0);
    OK(__wasi_fd_close(fd));
    IS(__wasi_fd_close(fd), E(BADF));
    OK(__wasi_path_unlink_file(root, "d/g"));
    OK(__wasi_path_remove_directory(root, "d"));
    OK(__wasi_path_unlink_file(root, "f"));
}

static void rights(void) {
    size_t count;
    char buffer[8];
    make("f");
    __wasi_fd_t fd = opened("f", 0, R(FD_READ));
    IS(put(fd, "x"), E(BADF));
    IS(__wasi_fd_filestat_set_size(fd, 0), E(NOTCAPABLE));
    OK(__wasi_fd_close(fd));
    fd = opened("f", 0, R(FD_WRITE));
    IS(get(fd, buffer, 8, &count), E(BADF));
    OK(__wasi_fd_close(fd));
    fd = opened("f", 0, BOTH | 1ull << 63);
    __wasi_fdstat_t found;
    OK(__wasi_fd_fdstat_get(fd, &found));
    IS(found.fs_rights_base >> 63, 0);
    OK(__wasi_fd_fdstat_set_rights(fd, found.fs_rights_base & ~R(FD_WRITE), 0));
    IS(__wasi_fd_fdstat_set_rights(fd, found.fs_rights_base, 0), E(NOTCAPABLE));
    IS(put(fd, "x"), E(BADF));
    OK(__wasi_fd_close(fd));
    OK(__wasi_path_create_directory(root, "d"));
    fd = opened("d", DIRECTORY, R(FD_READDIR));
    OK(__wasi_fd_fdstat_get(fd, &found));
    IS(found.fs_rights_base & R(FD_SEEK), 0);
    IS(found.fs_rights_base & R(FD_FILESTAT_SET_SIZE), 0);
    OK(__wasi_fd_fdstat_set_rights(fd, found.fs_rights_base & ~R(PATH_FILESTAT_SET_SIZE),
                                   found.fs_rights_inheriting));
    OK(__wasi_path_open(fd, 0, "g", CREAT, BOTH, 0, 0, &last));
    OK(__wasi_fd_close(last));
    IS(__wasi_path_open(fd, 0, "g", TRUNC, BOTH, 0, 0, &last), E(NOTCAPABLE));
    OK(__wasi_path_unlink_file(fd, "g"));
    OK(__wasi_fd_close(fd));
    OK(__wasi_path_remove_directory(root, "d"));
    OK(__wasi_path_unlink_file(root, "f"));
}

static void flags(void) {
    __wasi_fdstat_t found;
    for (int flags = 0; flags < 32; flags++) {
        OK(open_at("f", CREAT, BOTH | R(FD_SYNC) | R(FD_DATASYNC), flags, 0));
        OK(__wasi_fd_fdstat_get(last, &found)), IS(found.fs_flags, flags);
        OK(__wasi_fd_close(last));
    }
    OK(__wasi_path_unlink_file(root, "f"));
}

static void given(void) {
    const __wasi_rights_t own =
        R(PATH_CREATE_DIRECTORY) | R(PATH_CREATE_FILE) | R(PATH_LINK_SOURCE) | R(PATH_LINK_TARGET) |
        R(PATH_OPEN) | R(FD_READDIR) | R(PATH_READLINK) | R(PATH_RENAME_SOURCE) |
        R(PATH_RENAME_TARGET) | R(PATH_FILESTAT_GET) | R(PATH_FILESTAT_SET_TIMES) |
        R(PATH_SYMLINK) | R(PATH_REMOVE_DIRECTORY) | R(PATH_UNLINK_FILE) | R(FD_FILESTAT_GET) |
        R(FD_FILESTAT_SET_TIMES);
    const __wasi_rights_t below = own | BOTH | R(FD_SYNC) | R(FD_DATASYNC) | R(FD_ADVISE) |
        R(POLL_FD_READWRITE);
    __wasi_fdstat_t found, same;
    OK(__wasi_fd_fdstat_get(3, &found));
    IS((own & ~found.fs_rights_base) != 0, 0);
    IS((below & ~found.fs_rights_inheriting) != 0, 0);
    OK(__wasi_path_open(3, 0, ".", 0, found.fs_rights_base, found.fs_rights_inheriting, 0, &last));
    OK(__wasi_fd_fdstat_get(last, &same));
    IS(memcmp(&found, &same, sizeof same), 0);
    OK(__wasi_fd_close(last));
    uint8_t name[8] = "########";
    OK(__wasi_fd_prestat_dir_name(3, name, 2));
    IS(name[1], '#');
}

static void directories(void) {
    char buffer[8];
    size_t count;
    __wasi_filesize_t at;
    IS(get(root, buffer, 8, &count), E(ISDIR));
    IS(put(root, "x"), E(ISDIR));
    IS(__wasi_fd_seek(root, 0, __WASI_WHENCE_CUR, &at), E(BADF));
    IS(__wasi_fd_tell(root, &at), E(BADF));
    IS(__wasi_fd_allocate(root, 0, 1), E(BADF));
    IS(__wasi_fd_filestat_set_size(root, 0), E(BADF));
    OK(__wasi_path_create_directory(root, "d"));
    make("d/f");
    IS(__wasi_path_remove_directory(root, "d"), E(NOTEMPTY));
    IS(__wasi_path_remove_directory(root, "d/f"), E(NOTDIR));
    IS(__wasi_path_remove_directory(root, "d/f/"), E(NOTDIR));
    IS(__wasi_path_unlink_file(root, "d"), E(ISDIR));
    IS(__wasi_path_unlink_file(root, "d/"), E(ISDIR));
    IS(__wasi_path_unlink_file(root, "d/f/"), E(NOTDIR));
    IS(__wasi_path_unlink_file(root, "none"), E(NOENT));
    IS(__wasi_path_remove_directory(root, "d/."), E(INVAL));
    OK(__wasi_path_unlink_file(root, "d/f"));
    OK(__wasi_path_remove_directory(root, "d/"));
    IS(__wasi_path_create_directory(root, "none/d"), E(NOENT));
}

static int move(const char *from, const char *to) {
    return __wasi_path_rename(root, from, root, to);
}

static void renaming(void) {
    OK(__wasi_path_create_directory(root, "s"));
    OK(move("s/", "t"));
    OK(move("t", "s/"));
    OK(__wasi_path_create_directory(root, "t"));
    OK(move("s", "t"));
    IS(opens("s", DIRECTORY, 0), E(NOENT));
    OK(__wasi_path_create_directory(root, "s"));
    make("t/f");
    IS(move("s", "t"), E(NOTEMPTY));
    IS(move("s", "t/f"), E(NOTDIR));
    IS(move("t/f", "s"), E(ISDIR));
    IS(move("t", "t/below"), E(INVAL));
    IS(move("none", "x"), E(NOENT));
    IS(move("t/f", "x/"), E(NOTDIR));
    make("g");
    OK(move("t/f", "g"));
    OK(move("g", "g"));
    OK(__wasi_path_link(root, 0, "g", root, "h"));
    OK(move("g", "h"));
    OK(opens("g", 0, 0));
    OK(__wasi_path_unlink_file(root, "g"));
    OK(__wasi_path_unlink_file(root, "h"));
    OK(__wasi_path_remove_directory(root, "s"));
    OK(__wasi_path_remove_directory(root, "t"));
}

static int to(const char *target, const char *path) { return __wasi_path_symlink(target, root, path); }

static void linking(void) {
    char buffer[10] = "..........";
    __wasi_size_t used;
    make("f");
    OK(to("f", "l"));
    IS(to("f", "l"), E(EXIST));
    IS(to("f", "none/"), E(NOENT));
    IS(to("f", "f/"), E(NOTDIR));
    IS(to("/", "abs"), E(NOTCAPABLE));
    IS(opens("l", 0, R(FD_READ)), E(LOOP));
    IS(opens("l", DIRECTORY, 0), E(NOTDIR));
    IS(open_at("l", DIRECTORY, 0, 0, FOLLOW), E(NOTDIR));
    OK(open_at("l", 0, R(FD_READ), 0, FOLLOW));
    OK(__wasi_fd_close(last));
    IS(stat_of("l", 0).filetype, __WASI_FILETYPE_SYMBOLIC_LINK);
    IS(stat_of("l", FOLLOW).filetype, __WASI_FILETYPE_REGULAR_FILE);
    OK(__wasi_path_readlink(root, "l", (uint8_t *)buffer, 10, &used));
    IS(used, 1);
    IS(buffer[1], '.');
    IS(__wasi_path_readlink(root, "f", (uint8_t *)buffer, 10, &used), E(INVAL));
    OK(to("loop", "loop"));
    IS(open_at("loop", 0, 0, 0, FOLLOW), E(LOOP));
    IS(opens("loop/x", 0, 0), E(LOOP));
    OK(to("../out", "out"));
    IS(open_at("out", 0, 0, 0, FOLLOW), E(NOTCAPABLE));
    OK(to("made", "dangling"));
    OK(open_at("dangling", CREAT, R(FD_READ), 0, FOLLOW));
    OK(__wasi_fd_close(last));
    OK(__wasi_path_unlink_file(root, "made"));
    OK(__wasi_path_link(root, 0, "dangling", root, "hard"));
    IS(__wasi_path_link(root, FOLLOW, "dangling", root, "x"), E(INVAL));
    IS(__wasi_path_link(root, 0, "f", root, "dangling"), E(EXIST));
    IS(__wasi_path_link(root, 0, "f", root, "f"), E(EXIST));
    IS(__wasi_path_link(root, 0, "f", root, "x/"), E(NOENT));
    OK(__wasi_path_create_directory(root, "d"));
    IS(__wasi_path_link(root, 0, "d", root, "x"), E(PERM));
    OK(__wasi_path_link(root, 0, "f", root, "d/f"));
    IS(stat_of("f", 0).nlink, 2);
    __wasi_filestat_t one = stat_of("f", 0), two = stat_of("d/f", 0);
    IS(memcmp(&one, &two, sizeof one), 0);
    const char *names[] = {"f", "l", "loop", "out", "dangling", "hard", "d/f"};
    for (int i = 0; i < 7; i++) OK(__wasi_path_unlink_file(root, names[i]));
    OK(__wasi_path_remove_directory(root, "d"));
}

static void content(void) {
    char buffer[8] = {0};
    size_t count;
    __wasi_filesize_t at;
    __wasi_size_t done;
    __wasi_filestat_t found;
    __wasi_fd_t fd = opened("f", CREAT, BOTH);
    OK(put(fd, "hello"));
    OK(__wasi_fd_tell(fd, &at)), IS(at, 5);
    OK(__wasi_fd_seek(fd, -2, __WASI_WHENCE_END, &at)), IS(at, 3);
    IS(__wasi_fd_seek(fd, -9, __WASI_WHENCE_CUR, &at), E(INVAL));
    IS(__wasi_fd_seek(fd, 0, 7, &at), E(INVAL));
    OK(get(fd, buffer, 8, &count)), IS(count, 2);
    OK(get(fd, buffer, 8, &count)), IS(count, 0);
    OK(__wasi_fd_seek(fd, 100, __WASI_WHENCE_SET, &at));
    OK(get(fd, buffer, 8, &count)), IS(count, 0);
    OK(__wasi_fd_filestat_get(fd, &found)), IS(found.size, 5);
    OK(__wasi_fd_allocate(fd, 90, 20));
    OK(__wasi_fd_filestat_get(fd, &found)), IS(found.size, 110);
    OK(__wasi_fd_allocate(fd, 0, 1));
    IS(__wasi_fd_allocate(fd, 0, 0), E(INVAL));
    OK(__wasi_fd_filestat_set_size(fd, 3));
    OK(__wasi_fd_fdstat_set_flags(fd, __WASI_FDFLAGS_APPEND));
    OK(__wasi_fd_seek(fd, 0, __WASI_WHENCE_SET, &at));
    OK(put(fd, "p"));
    OK(__wasi_fd_fdstat_set_flags(fd, 0));
    __wasi_iovec_t vectors[2] = {{(uint8_t *)buffer, 1}, {(uint8_t *)buffer + 1, 7}};
    OK(__wasi_fd_pread(fd, vectors, 2, 0, &done)), IS(done, 4);
    IS(memcmp(buffer, "help", 4), 0);
    IS(__wasi_fd_filestat_set_times(fd, 1, 2, 3), E(INVAL));
    IS(__wasi_fd_filestat_set_times(fd, 1, 2, 12), E(INVAL));
    OK(__wasi_fd_filestat_get(fd, &found));
    __wasi_timestamp_t accessed = found.atim;
    OK(__wasi_fd_filestat_set_times(fd, 1000, 2000, __WASI_FSTFLAGS_MTIM));
    OK(__wasi_fd_filestat_get(fd, &found)), IS(found.mtim, 2000), IS(found.atim == accessed, 1);
    OK(__wasi_path_unlink_file(root, "f"));
    OK(__wasi_fd_close(fd));
}

#define PAGE 256

static size_t page(__wasi_fd_t fd, __wasi_dircookie_t cookie, uint8_t *buffer) {
    __wasi_size_t used = 0;
    OK(__wasi_fd_readdir(fd, buffer, PAGE, cookie, &used));
    return used;
}

static size_t names(__wasi_fd_t fd, __wasi_dircookie_t cookie, __wasi_dircookie_t *next) {
    uint8_t buffer[PAGE];
    size_t count = 0, used = page(fd, cookie, buffer);
    for (size_t at = 0; at + 24 <= used;) {
        __wasi_dirent_t entry;
        memcpy(&entry, buffer + at, 24);
        at += 24 + entry.d_namlen;
        if (at > used) break;
        *next = entry.d_next;
        count++;
    }
    return count;
}

static void listing(void) {
    char name[16];
    OK(__wasi_path_create_directory(root, "d"));
    __wasi_fd_t fd = opened("d", DIRECTORY, R(FD_READDIR));
    __wasi_dircookie_t cookie = 0;
    IS(names(fd, 0, &cookie), 2);
    make("d/00");
    uint8_t entries[128];
    __wasi_size_t used;
    __wasi_dirent_t entry;
    OK(__wasi_fd_readdir(fd, entries, sizeof entries, 0, &used)), IS(used, 3 * 24 + 1 + 2 + 2);
    memcpy(&entry, entries, 24);
    IS(entry.d_ino == stat_of("d", 0).ino, 1), IS(entry.d_type, __WASI_FILETYPE_DIRECTORY);
    memcpy(&entry, entries + 2 * 24 + 1 + 2, 24);
    IS(entry.d_ino == stat_of("d/00", 0).ino, 1), IS(entry.d_type, __WASI_FILETYPE_REGULAR_FILE);
    for (int i = 0; i < 50; i++) snprintf(name, sizeof name, "d/%02d", i), make(name);
    /* A page that is not full is the last one: an entry that does not fit is cut, not left out. */
    uint8_t listed[PAGE];
    IS(page(fd, 0, listed), PAGE);
    size_t total = 0, count;
    cookie = 0;
    for (int i = 50; (count = names(fd, cookie, &cookie)) > 0; total += count)
        if (i < 60) snprintf(name, sizeof name, "d/%02d", i++), make(name);
    IS(total, 52);
    IS(page(fd, cookie, listed), 0);
    for (int i = 0; i < 60; i++) {
        snprintf(name, sizeof name, "d/%02d", i);
        __wasi_path_unlink_file(root, name);
    }
    OK(__wasi_path_remove_directory(root, "d"));
    OK(__wasi_fd_close(fd));
}

static void streams(void) {
    __wasi_filestat_t found;
    for (__wasi_fd_t fd = 0; fd < 3; fd++) {
        OK(__wasi_fd_filestat_get(fd, &found));
        IS(found.size, 0), IS(found.atim, 0), IS(found.mtim, 0), IS(found.ctim, 0);
    }
}

static void numbers(void) {
    __wasi_fd_t one = opened("one", CREAT, BOTH), two = opened("two", CREAT, BOTH);
    OK(put(one, "1"));
    OK(__wasi_fd_renumber(one, two));
    IS(__wasi_fd_close(one), E(BADF));
    IS(__wasi_fd_renumber(two, one), E(BADF));
    OK(put(two, "2"));
    IS(stat_of("one", 0).size, 2);
    IS(stat_of("two", 0).size, 0);
    OK(__wasi_fd_close(0));
    OK(__wasi_fd_renumber(two, 0));
    OK(put(0, "3"));
    IS(stat_of("one", 0).size, 3);
    OK(__wasi_path_unlink_file(root, "one"));
    OK(__wasi_path_unlink_file(root, "two"));
    uint8_t small[1];
    __wasi_prestat_t given;
    OK(__wasi_fd_prestat_get(3, &given));
    IS(__wasi_fd_prestat_dir_name(3, small, 0), E(NAMETOOLONG));
    IS(__wasi_fd_prestat_get(99, &given), E(BADF));
    __wasi_size_t got;
    IS(__wasi_sock_send(1, 0, 0, 0, &got), E(NOTSOCK));
}

static void waiting(void) {
    __wasi_subscription_t wanted[3] = {0};
    __wasi_event_t events[3];
    __wasi_size_t count;
    wanted[0].userdata = 1, wanted[0].u.tag = __WASI_EVENTTYPE_CLOCK;
    wanted[0].u.u.clock.id = __WASI_CLOCKID_MONOTONIC;
    wanted[0].u.u.clock.timeout = 1000000;
    wanted[1].userdata = 2, wanted[1].u.tag = __WASI_EVENTTYPE_FD_WRITE;
    wanted[1].u.u.fd_write.file_descriptor = 1;
    wanted[2].userdata = 3, wanted[2].u.tag = __WASI_EVENTTYPE_FD_READ;
    wanted[2].u.u.fd_read.file_descriptor = 77;
    __wasi_timestamp_t before, after;
    OK(__wasi_clock_time_get(__WASI_CLOCKID_MONOTONIC, 0, &before));
    OK(__wasi_poll_oneoff(wanted, events, 1, &count)), IS(count, 1), IS(events[0].userdata, 1);
    OK(__wasi_clock_time_get(__WASI_CLOCKID_MONOTONIC, 0, &after));
    IS(after - before >= 1000000, 1), IS(events[0].type, __WASI_EVENTTYPE_CLOCK);
    OK(__wasi_poll_oneoff(wanted, events, 3, &count)), IS(count, 2);
    IS(events[0].userdata, 2), IS(events[0].error, 0), IS(events[0].type, __WASI_EVENTTYPE_FD_WRITE);
    IS(events[1].userdata, 3), IS(events[1].error, E(BADF)), IS(events[1].type, __WASI_EVENTTYPE_FD_READ);
    IS(__wasi_poll_oneoff(wanted, events, 0, &count), E(INVAL));
}

/* The standard streams and the directory of the start are descriptors as any other. */
static void moving(void) {
    __wasi_fdstat_t found;
    __wasi_fd_t fd;
    make("f");
    for (__wasi_fd_t stream = 0; stream < 3; stream++) {
        fd = opened("f", 0, R(FD_READ));
        fflush(stdout);
        OK(__wasi_fd_renumber(stream, fd));
        IS(__wasi_fd_fdstat_get(stream, &found), E(BADF));
        OK(__wasi_fd_fdstat_get(fd, &found)), IS(found.fs_filetype == __WASI_FILETYPE_REGULAR_FILE, stream == 0);
        OK(__wasi_fd_renumber(fd, stream));
    }
    OK(__wasi_path_unlink_file(root, "f"));
    fd = opened(".", DIRECTORY, R(FD_FILESTAT_GET));
    OK(__wasi_fd_renumber(fd, 3));
    IS(__wasi_fd_fdstat_get(fd, &found), E(BADF));
    __wasi_filestat_t moved;
    OK(__wasi_fd_filestat_get(3, &moved)), IS(moved.ino == stat_of(".", 0).ino, 1);
    OK(__wasi_fd_close(3));
    IS(__wasi_fd_fdstat_get(3, &found), E(BADF));
    OK(__wasi_fd_fdstat_get(root, &found)), IS(found.fs_filetype, __WASI_FILETYPE_DIRECTORY);
}

int main(void) {
    OK(__wasi_path_open(3, 0, "w", DIRECTORY, 0, ALL, 0, &root));
    opening(), rights(), flags(), given(), directories(), renaming(), linking();
    content(), listing(), streams(), numbers(), waiting(), moving();
    printf("%d checks\n", checks);
    return failures > 100 ? 100 : failures;
}
