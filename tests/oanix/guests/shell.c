/* A shell of four commands: echo, cat, write and exit, with $1 to $9 and $NAME. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static char **arguments;
static int count;

static const char *value(const char *word) {
    if (word[0] != '$') return word;
    if (word[1] >= '1' && word[1] <= '9') {
        int number = word[1] - '0';
        return number < count ? arguments[number] : "";
    }
    const char *found = getenv(word + 1);
    return found ? found : "";
}

static int cat(const char *path) {
    FILE *file = fopen(path, "r");
    if (!file) { fprintf(stderr, "cat: %s: not there\n", path); return 1; }
    for (int c; (c = fgetc(file)) != EOF;) putchar(c);
    return fclose(file);
}

static int write_words(const char *path, char **words) {
    FILE *file = fopen(path, "w");
    if (!file) { fprintf(stderr, "write: %s: can not be written\n", path); return 1; }
    for (; *words; words++) fprintf(file, "%s%s", value(*words), words[1] ? " " : "\n");
    return fclose(file);
}

static int command(char **words) {
    if (!strcmp(words[0], "echo")) {
        for (words++; *words; words++) printf("%s%s", value(*words), words[1] ? " " : "");
        putchar('\n');
        return 0;
    }
    if (!strcmp(words[0], "cat")) return cat(value(words[1]));
    if (!strcmp(words[0], "write")) return write_words(value(words[1]), words + 2);
    if (!strcmp(words[0], "exit")) exit(atoi(value(words[1])));
    fprintf(stderr, "%s: no such command\n", words[0]);
    return 127;
}

int main(int argc, char **argv) {
    FILE *script = argc > 1 ? fopen(argv[1], "r") : stdin;
    if (!script) { fprintf(stderr, "%s: not there\n", argv[1]); return 127; }
    arguments = argv + 1, count = argc - 1;
    char line[1024];
    int code = 0;
    while (fgets(line, sizeof line, script)) {
        char *words[32] = {0};
        int found = 0;
        for (char *word = strtok(line, " \n"); word && found < 31; word = strtok(0, " \n"))
            words[found++] = word;
        if (found && words[0][0] != '#') code = command(words);
    }
    return code;
}
