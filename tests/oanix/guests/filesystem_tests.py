"""Tests of files that a CPython for WASI runs, in a namespace and under native WASI alike."""

import errno
import filecmp
import glob
import os
import pathlib
import shutil
import stat
import tempfile
import unittest
import zipfile
from collections.abc import Callable


class Base(unittest.TestCase):
    """An empty directory for each test."""

    def setUp(self) -> None:
        self.top = pathlib.Path(tempfile.mkdtemp())
        self.addCleanup(shutil.rmtree, self.top)

    def fails(self, name: str, function: Callable[..., object], *arguments: object) -> None:
        with self.assertRaises(OSError) as caught:
            function(*arguments)
        self.assertEqual(errno.errorcode[caught.exception.errno or 0], name)


class OsTests(Base):
    """The calls of `os`."""

    def test_making_and_removing(self) -> None:
        os.makedirs(self.top / "a/b/c")
        self.fails("EEXIST", os.mkdir, self.top / "a")
        self.fails("ENOTEMPTY", os.rmdir, self.top / "a")
        self.fails("ENOENT", os.mkdir, self.top / "x/y")
        (self.top / "keep").write_text("")
        os.removedirs(self.top / "a/b/c")
        self.assertEqual(os.listdir(self.top), ["keep"])
        self.fails("ENOENT", os.unlink, self.top / "a")

    def test_renaming(self) -> None:
        (self.top / "d/e").mkdir(parents=True)
        (self.top / "f").write_text("f")
        os.rename(self.top / "f", self.top / "g")
        os.replace(self.top / "g", self.top / "d/g")
        self.fails("EINVAL", os.rename, self.top / "d", self.top / "d/e/d")
        self.fails("EISDIR", os.rename, self.top / "d/g", self.top / "d/e")
        self.fails("ENOTDIR", os.rename, self.top / "d/e", self.top / "d/g")
        self.assertEqual(sorted(os.listdir(self.top / "d")), ["e", "g"])

    def test_links(self) -> None:
        (self.top / "f").write_text("text")
        os.link(self.top / "f", self.top / "hard")
        os.symlink("f", self.top / "soft")
        os.symlink("soft", self.top / "twice")
        os.symlink("loop", self.top / "loop")
        self.assertEqual((self.top / "twice").read_text(), "text")
        self.assertEqual(os.readlink(self.top / "twice"), "soft")
        self.assertEqual((self.top / "f").stat().st_nlink, 2)
        self.assertTrue(os.path.samefile(self.top / "hard", self.top / "soft"))
        self.assertTrue(stat.S_ISLNK(os.lstat(self.top / "soft").st_mode))
        self.fails("ELOOP", os.stat, self.top / "loop")
        os.unlink(self.top / "f")
        self.assertFalse(os.path.exists(self.top / "soft"))
        self.assertEqual((self.top / "hard").read_text(), "text")

    def test_times_and_sizes(self) -> None:
        path = self.top / "f"
        path.write_bytes(bytes(range(10)))
        os.utime(path, ns=(1_500_000_000, 2_700_000_000))
        found = path.stat()
        self.assertEqual((found.st_atime_ns, found.st_mtime_ns), (1_500_000_000, 2_700_000_000))
        os.truncate(path, 4)
        os.truncate(path, 8)
        self.assertEqual(path.read_bytes(), b"\0\1\2\3\0\0\0\0")

    def test_walking(self) -> None:
        for name in ("a/1", "a/b/2", "c/3", "4"):
            (self.top / name).parent.mkdir(parents=True, exist_ok=True)
            (self.top / name).write_text(name)
        found = {
            os.path.relpath(top, self.top): (sorted(directories), sorted(files))
            for top, directories, files in os.walk(self.top)
        }
        expected = {".": (["a", "c"], ["4"]), "a": (["b"], ["1"]), "a/b": ([], ["2"])}
        self.assertEqual(found, expected | {"c": ([], ["3"])})
        with os.scandir(self.top) as entries:
            kinds = {entry.name: (entry.is_dir(), entry.is_file()) for entry in entries}
        self.assertEqual(kinds, {"a": (True, False), "c": (True, False), "4": (False, True)})

    def test_descriptors(self) -> None:
        fd = os.open(self.top / "f", os.O_RDWR | os.O_CREAT | os.O_EXCL)
        self.fails("EEXIST", os.open, self.top / "f", os.O_RDWR | os.O_CREAT | os.O_EXCL)
        self.assertEqual(os.write(fd, b"0123456789"), 10)
        self.assertEqual(os.lseek(fd, -3, os.SEEK_END), 7)
        self.assertEqual(os.read(fd, 100), b"789")
        self.assertEqual(os.pread(fd, 2, 4), b"45")
        self.assertEqual(os.pwrite(fd, b"xy", 12), 2)
        os.ftruncate(fd, 13)
        self.assertEqual(os.fstat(fd).st_size, 13)
        os.fsync(fd)
        os.unlink(self.top / "f")
        self.assertEqual(os.pread(fd, 20, 0), b"0123456789\0\0x")
        os.close(fd)
        self.fails("EBADF", os.read, fd, 1)

    def test_listing_while_files_come(self) -> None:
        for number in range(300):
            (self.top / f"file-{number:03}").write_text("")
        seen = []
        with os.scandir(self.top) as entries:
            for place, entry in enumerate(entries):
                seen.append(entry.name)
                if place < 5:
                    (self.top / f"new-{place}").write_text("")
        self.assertEqual(len({name for name in seen if name.startswith("file")}), 300)


class LibraryTests(Base):
    """What the library builds on them."""

    def test_reading_and_writing_text(self) -> None:
        path = self.top / "ünïcode → ✓"
        with path.open("w+", encoding="utf-8") as file:
            file.write("líne\n" * 1000)
            file.seek(0)
            self.assertEqual(sum(1 for _ in file), 1000)
        with path.open("a", encoding="utf-8") as one, path.open("a", encoding="utf-8") as two:
            one.write("one\n")
            one.flush()
            two.write("two\n")
        self.assertTrue(path.read_text(encoding="utf-8").endswith("one\ntwo\n"))
        self.assertEqual(os.listdir(self.top), [path.name])

    def test_a_large_file(self) -> None:
        path = self.top / "large"
        block = bytes(range(256)) * 256
        with path.open("wb") as file:
            for _ in range(64):
                file.write(block)
            file.seek(1 << 24)
            file.write(b"end")
        self.assertEqual(path.stat().st_size, (1 << 24) + 3)
        with path.open("rb") as file:
            file.seek(63 << 16)
            self.assertEqual(file.read(1 << 16), block)

    def test_trees(self) -> None:
        (self.top / "a/b").mkdir(parents=True)
        (self.top / "a/b/f").write_text("f")
        os.symlink("b/f", self.top / "a/l")
        shutil.copytree(self.top / "a", self.top / "copy", symlinks=True)
        self.assertEqual(os.readlink(self.top / "copy/l"), "b/f")
        self.assertEqual(filecmp.dircmp(self.top / "a", self.top / "copy").diff_files, [])
        shutil.move(self.top / "copy", self.top / "moved")
        self.assertEqual(
            sorted(glob.glob("**/f", root_dir=self.top, recursive=True)), ["a/b/f", "moved/b/f"]
        )
        shutil.rmtree(self.top / "moved")
        with self.assertRaises(shutil.Error):
            shutil.move(self.top / "a", self.top / "a/b")

    def test_temporary_files(self) -> None:
        with tempfile.NamedTemporaryFile(dir=self.top) as file:
            file.write(b"kept")
            file.flush()
            self.assertEqual(pathlib.Path(file.name).read_bytes(), b"kept")
        self.assertEqual(os.listdir(self.top), [])
        with tempfile.TemporaryDirectory(dir=self.top) as directory:
            (pathlib.Path(directory) / "f").write_text("")
        self.assertEqual(os.listdir(self.top), [])

    def test_archives(self) -> None:
        (self.top / "d").mkdir()
        (self.top / "d/f").write_text("content" * 100)
        made = shutil.make_archive(str(self.top / "made"), "tar", self.top, "d")
        shutil.unpack_archive(made, self.top / "from-tar")
        with zipfile.ZipFile(self.top / "z.zip", "w") as archive:
            archive.write(self.top / "d/f", "f")
        with zipfile.ZipFile(self.top / "z.zip", "a") as archive:
            archive.writestr("g", "g")
            archive.extractall(self.top / "from-zip")
        self.assertTrue(filecmp.cmp(self.top / "d/f", self.top / "from-zip/f", shallow=False))
        self.assertTrue(filecmp.cmp(self.top / "d/f", self.top / "from-tar/d/f", shallow=False))

    def test_paths_do_not_lead_out(self) -> None:
        for path in ("/etc/passwd", "/../etc/passwd", "/data/../../etc/passwd"):
            self.assertFalse(os.path.exists(path))
        os.symlink("../" * 20 + "etc/passwd", self.top / "out")
        self.assertFalse(os.path.exists(self.top / "out"))
        with self.assertRaises(OSError):
            open(self.top / "out")
