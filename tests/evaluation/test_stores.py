"""Files of an archive: a zip and a folder hold the same, and what is not to be read is refused."""

import os
import zipfile
from pathlib import Path

import pytest

from hmerbench.evaluation import InputError, stores
from hmerbench.evaluation.stores import FolderStore, Store, ZipStore

FILES = {"train/caption.txt": b"a\tx\n", "mine/caption.txt": b"\xef\xbb\xbfb\ty\r\n", "mine/symLg/b.lg": b"# IUD\n"}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """With what is passed over: a hidden file, and a level deeper than the layout's."""
    for name, content in (FILES | {"mine/symLg/._b.lg": b"\0", "mine/symLg/old/b.lg": b""}).items():
        (tmp_path / "a/data" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "a/data" / name).write_bytes(content)
    return tmp_path / "a"


def packed(path: Path, files: dict[str, bytes]) -> ZipStore:
    with zipfile.ZipFile(path, "w") as file:
        for name, content in files.items():
            file.writestr(name, content)
    return ZipStore(path)


def test_zip_and_folder_hold_the_same(tmp_path: Path, folder: Path) -> None:
    left = {"data/mine/symLg/._b.lg": b"\0", "__MACOSX/data/mine/symLg/b.lg": b"\0"}
    windows = {f"data/{name}".replace("/", "\\"): content for name, content in FILES.items()}
    zipped = packed(tmp_path / "a.zip", {f"data/{name}": content for name, content in FILES.items()} | left)
    for store in (zipped, packed(tmp_path / "b.zip", windows), FolderStore(folder), FolderStore(folder / "data")):
        assert store.sizes == {name: len(content) for name, content in FILES.items()}
        assert [store.crc(name) for name in FILES] == [zipped.crc(name) for name in FILES]
        assert (store.splits, store.captions("mine")) == (["mine", "train"], "b\ty\r\n")
        assert (store.has_symlg("mine"), store.has_symlg("train")) == (True, False)
        assert dict(store.texts(".lg", "mine/symLg/")) == {"b": "# IUD\n"}


def refused(store: Store) -> str:
    with pytest.raises(InputError) as caught:
        dict(store.texts(".lg", "mine/symLg/"))
    return str(caught.value)


def test_what_is_not_read(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    graph = folder / "data/mine/symLg/c.lg"
    os.mkfifo(graph)
    assert "c.lg: is not a regular file; take it out" in refused(FolderStore(folder))
    graph.unlink()
    graph.symlink_to("nowhere")
    assert "c.lg: is not a regular file; take it out" in refused(FolderStore(folder))
    graph.unlink()
    large = packed(folder / "a.zip", {"data/mine/symLg/b.lg": bytes(stores.MAX_BYTES + 1)})
    words = "a.zip: data/mine/symLg/b.lg holds 4,194,305 bytes, more than 4,194,304; take an archive"
    assert words in refused(large)
    monkeypatch.setattr(stores, "MAX_TEXTS", 5)
    assert "the whole of its .lg holds 6 bytes, more than 5; take an archive" in refused(FolderStore(folder))
