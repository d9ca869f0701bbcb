"""`graftlm plugins`: states and reasons."""

from __future__ import annotations

import pytest
from plugin_packages import Site, run_graftlm


def test_each_state_has_its_reason(zoo, ask):
    """Active, failed, refused, idle and disabled, each with why; what a plugin prints does not spoil the answer."""
    code, told, _ = ask("list", "--disable-plugin", "TORCH_PAGED")
    rows = {row["name"]: row for row in told["plugins"]}

    assert code == 0
    assert (rows["works"]["state"], rows["works"]["reason"]) == ("active", "it ran, and registered nothing")
    assert rows["works"]["ms"] > 0
    assert rows["raises"]["state"] == "failed" and "RuntimeError: no driver" in rows["raises"]["reason"]
    assert rows["new"]["state"] == "refused" and ">=9.0" in rows["new"]["reason"]
    assert (rows["ZooForCausalLM"]["state"], rows["ZooForCausalLM"]["ms"]) == ("idle", 0)
    assert rows["ZooForCausalLM"]["target"] == "zoo_works:Nothing"
    assert (rows["TORCH_PAGED"]["state"], rows["TORCH_PAGED"]["reason"]) == (
        "disabled",
        "--disable-plugin names it",
    )


def test_the_active_platform_says_that_it_answered(installed, example_wheels, ask):
    """And the built-in one that lost says to whom; a plugin of the workers says where it runs."""
    installed.install(*example_wheels)
    _, told, _ = ask("list")
    rows = {row["name"]: row for row in told["plugins"] if row["point"] != "workers"}

    assert (rows["dummy_platform_plugin"]["state"], rows["dummy_platform_plugin"]["reason"]) == (
        "active", "its detector answered",
    )  # fmt: skip
    assert rows["cpu"]["reason"] == "every machine has one; dummy_platform_plugin was taken"
    assert (rows["dummy_custom_ops"]["state"], rows["dummy_custom_ops"]["reason"]) == (
        "idle", "installed; runs in: worker",
    )  # fmt: skip


def test_a_refused_start_still_says_what_happened_until_then(installed, ask):
    """A platform plugin that raises is listed as failed, although no server would start."""
    installed.write(
        "sick-platform", entry_points={"platform_plugins": {"sick": "sick_platform:detect"}},
        files={"sick_platform.py": "def detect():\n    raise OSError('driver too old')\n"},
    )  # fmt: skip
    code, told, errors = ask("list")
    (sick,) = [row for row in told["plugins"] if row["name"] == "sick"]

    assert code == 1
    assert sick["state"] == "failed" and "driver too old" in sick["reason"]
    assert "driver too old" in told["error"] and "--platform cpu" in errors.splitlines()[-1]


def test_a_wrong_sub_command_is_one_line(installed):
    """With the nearest name, and code 2."""
    done = run_graftlm("plugins", "explian", env=installed.environment)

    assert done.returncode == 2
    assert (
        done.stderr.strip()
        .splitlines()[-1]
        .startswith("graftlm: error: unknown sub-command 'explian'; did you mean explain?")
    )


@pytest.mark.parametrize(
    ("words", "cure"),
    [
        (["--url", "http://h"], "unknown flag --url; `graftlm plugins explain` takes it (see `graftlm plugins ex"),
        (["doctor", "--until-ready"], "unknown flag --until-ready; `graftlm plugins trace` takes it (see "),
        (["--nonsense"], "unknown flag --nonsense; see `graftlm plugins list --help`"),
        (["--jsn"], "unknown flag --jsn; did you mean --json? (see `graftlm plugins list --help`)"),
    ],
)
def test_a_flag_of_another_sub_command_is_told_whose_it_is(installed, words, cure):
    """Else a reader looks for it in a help that does not have it."""
    done = run_graftlm("plugins", *words, env=installed.environment)

    assert done.returncode == 2
    assert done.stderr.strip().splitlines()[-1].startswith(f"graftlm: error: {cure}")


def test_help_names_the_sub_commands_and_imports_nothing(zoo):
    """`graftlm plugins --help` and the help of each sub-command."""
    top = run_graftlm("plugins", "--help", env=zoo.environment)
    for name in ("list", "explain", "trace", "doctor", "new", "lock", "bisect"):
        assert f"  {name} " in top.stdout
        done = run_graftlm("plugins", name, "--help", env=zoo.environment)
        assert done.returncode == 0 and f"graftlm plugins {name}" in done.stdout, done.stderr
        assert "chatty" not in done.stdout


def test_a_thread_that_a_plugin_never_ends_does_not_keep_the_command(tmp_path):
    """The command ends with its own exit code and says whose thread it left behind."""
    site = Site(tmp_path / "site").write(
        "threads-forever",
        entry_points={"general_plugins": {"sleeper": "threads_forever:register"}},
        files={
            "threads_forever.py": """
                import threading, time

                def register():
                    threading.Thread(target=time.sleep, args=(3600,), name="sleeper of a plugin").start()
            """
        },
    )

    done = run_graftlm("plugins", env=site.environment)

    assert done.returncode == 0
    assert "threads-forever" in done.stdout
    assert "sleeper of a plugin" in done.stderr and "daemon=True" in done.stderr
