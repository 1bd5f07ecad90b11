"""A bad job file is answered with file:line:column."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from optimus_cli.errors import BadInput, FieldError, Refused
from optimus_cli.job.jobfile import MAX_FILE_BYTES, BadJobFile, Position, read_job_file
from optimus_cli.job.specification import Flag, Specification, assemble
from optimus_contract.job import checked_patterns

YAML = """\
# a comment
name: digits
task: pkg.train:net
workers:
  max: -3
  resources: {cpu: 1, gpuz: 2}
convergence:
  loss_decrease:
    below: 2
"""
JSON = '{\n\t"name": "digits",\n\t"task": "pkg.train:net",\n\t"workers": {"max": -3}\n}\n'


def written(directory: Path, name: str, text: str | bytes) -> Path:
    path = directory / name
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return path


def test_yaml_and_json_give_the_same_document(tmp_path: Path) -> None:
    from_json = read_job_file(written(tmp_path, "job.json", JSON))
    from_yaml = read_job_file(written(tmp_path, "job.yaml", "name: digits\ntask: pkg.train:net\nworkers: {max: -3}\n"))
    assert (
        from_json.document == from_yaml.document == {"name": "digits", "task": "pkg.train:net", "workers": {"max": -3}}
    )


def test_every_field_has_its_position(tmp_path: Path) -> None:
    file = read_job_file(written(tmp_path, "job.yaml", YAML))
    assert file.position(("name",)) == Position(2, 7)
    assert file.position(("workers", "max")) == Position(5, 8)
    assert file.position(("workers",)) == Position(4, 1), "a mapping is pointed at by its name"
    assert file.position(("workers", "resources", "gpuz")) == Position(6, 29)
    assert file.position(("workers", "min")) == Position(4, 1), "a missing field is where it would belong"
    assert file.position(("project",)) is None
    tabs = read_job_file(written(tmp_path, "job.json", JSON))
    assert tabs.position(("workers", "max")) == Position(4, 21)


@pytest.mark.parametrize(
    ("name", "text", "place", "message"),
    [
        ("a.yaml", "name: x\n  task: y\n", ":2:7", "mapping values are not allowed here"),
        ("b.yaml", "name: [1, 2\ntask: y\n", ":2:5", "expected ',' or ']'"),
        ("c.yaml", "name: a\nname: b\n", ":2:1", "'name' is given twice"),
        ("d.yaml", "workers:\n  max: .inf\n", ":2:8", "not a finite number"),
        ("e.yaml", "1: x\n", ":1:1", "field names must be text"),
        ("f.yaml", "- name: x\n", ":1:1", "expected a mapping"),
        ("g.yaml", "", ":1:1", "expected a mapping"),
        ("h.yaml", "name: !!python/object:os.system x\n", ":1:7", "could not determine a constructor"),
        ("i.yaml", "name: x\n \x00\n", ":2:2", "special characters are not allowed"),
        ("j.yaml", b"name: ok\ntask: \xff\n", ":2:7", "not UTF-8"),
        ("k.yaml", "a: &a [*a]\n", ": ", "more than"),
        ("l.json", '{\n "name" "x"\n}\n', ":2:9", "expecting ':'"),
        ("m.json", '{"name": "x"', ":1:13", "Expecting"),
        ("n.json", '{"name": "x", "name": "y"}', ":1:15", "given twice"),
        ("o.json", '{"priority": NaN}', ":1:14", "not a finite number"),
    ],
)
def test_what_is_wrong_is_pointed_at(tmp_path: Path, name: str, text: str | bytes, place: str, message: str) -> None:
    path = written(tmp_path, name, text)
    with pytest.raises(BadJobFile) as raised:
        read_job_file(path)
    assert str(raised.value).startswith(f"{path}{place}")
    assert message.lower() in str(raised.value).lower()


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="No such file"):
        read_job_file(tmp_path / "nothing.yaml")
    with pytest.raises(BadInput, match="directory"):
        read_job_file(tmp_path)
    with pytest.raises(BadInput, match="larger than"):
        read_job_file(written(tmp_path, "big.yaml", b"#" * (MAX_FILE_BYTES + 1)))


def test_aliases_cannot_unfold_without_end(tmp_path: Path) -> None:
    lines = ["a0: &a0 [1, 1, 1, 1, 1, 1, 1, 1, 1, 1]"]
    lines += [f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 10)}]" for n in range(1, 9)]
    with pytest.raises(BadJobFile, match="more than"):
        read_job_file(written(tmp_path, "bomb.yaml", "\n".join(lines)))


def test_deep_nesting_is_refused_and_not_a_crash(tmp_path: Path) -> None:
    for name in ("deep.yaml", "deep.json"):
        with pytest.raises(BadInput, match="deep"):
            read_job_file(written(tmp_path, name, '{"a":' * 20_000 + "1" + "}" * 20_000))


def test_merge_keys_work(tmp_path: Path) -> None:
    text = "task_args: &base {lr: 0.1}\nenvironment:\n  <<: *base\n  MORE: x\n"
    file = read_job_file(written(tmp_path, "job.yaml", text))
    assert file.document["environment"] == {"lr": 0.1, "MORE": "x"}


def test_numbers_with_exponents_are_numbers(tmp_path: Path) -> None:
    expected = {"a": 1e-3, "b": 2e5, "c": 1.5e3, "d": "1e", "e": 7}
    assert read_job_file(written(tmp_path, "a.yaml", "a: 1e-3\nb: 2E5\nc: 1.5e+3\nd: 1e\ne: 7\n")).document == expected
    assert (
        read_job_file(written(tmp_path, "a.json", '{"a":1e-3,"b":2E5,"c":1.5e+3,"d":"1e","e":7}')).document == expected
    )


def test_dates_stay_text(tmp_path: Path) -> None:
    assert read_job_file(written(tmp_path, "job.yaml", "name: 2026-01-02\n")).document == {"name": "2026-01-02"}


def refused(*errors: tuple[str, str], status: int = 422) -> Refused:
    return Refused(status, "bad", [FieldError(*error) for error in errors])


def test_a_refused_field_is_traced_to_its_line(tmp_path: Path) -> None:
    path = written(tmp_path, "job.yaml", YAML)
    specification = assemble(read_job_file(path), [], tmp_path)
    explained = specification.explain(
        refused(("workers.max", "must be above 0"), ("workers.resources.gpuz", "unknown field"), ("body", "no"))
    )
    assert str(explained).splitlines() == [
        f"{path}:5:8: workers.max: must be above 0",
        f"{path}:6:29: workers.resources.gpuz: unknown field",
        f"{path}: body: no",
    ]
    assert explained.exit_code == 2


def test_a_refused_flag_is_named(tmp_path: Path) -> None:
    file = read_job_file(written(tmp_path, "job.yaml", YAML))
    flag = Flag("--workers-max", ("workers", "max"), -5)
    explained = assemble(file, [flag], tmp_path).explain(refused(("workers.max", "must be above 0")))
    assert str(explained) == "--workers-max: must be above 0"


def test_without_a_file_the_field_is_named(tmp_path: Path) -> None:
    specification = Specification({"task": "a:b"}, None, {})
    assert str(specification.explain(refused(("seed", "must be above 0")))) == "seed: must be above 0"


def test_other_refusals_stay_as_they_are() -> None:
    specification = Specification({"task": "a:b"}, None, {})
    for refusal in (refused(), refused(("Idempotency-Key", "was used"), status=409)):
        assert specification.explain(refusal) is refusal


# --- patterns for what a script prints -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("patterns", "said"),
    [
        ([r"(?P<stpe>\d+)"], "did you mean step?"),
        ([r"(?P<accuracy>\S+)"], "no group is named step, epoch or loss"),
        ([r"(?P<learning_rate>\S+)"], "Known names: step, total_steps"),
    ],
)
def test_patterns_that_find_no_progress_are_refused(patterns: list[str], said: str) -> None:
    with pytest.raises(ValueError, match=re.escape(said)):
        checked_patterns(patterns)


def test_patterns_may_name_figures_beside_progress() -> None:
    patterns = [r"it (?P<step>\d+)", r"acc (?P<accuracy>\S+)"]
    assert checked_patterns(patterns) == patterns


# --- a script that is taken for a job file ---------------------------------------------------------------------------


@pytest.mark.parametrize(("name", "command"), [("plain.py", "python plain.py"), ("run.sh", "bash run.sh")])
def test_a_script_is_no_job_file(tmp_path: Path, name: str, command: str) -> None:
    file = written(tmp_path, name, "for step in range(60):\n    print(step)\n")
    with pytest.raises(
        BadInput, match=f"a job file is YAML or JSON; to run a script: optimus submit -- {command.split()[0]} "
    ):
        read_job_file(file)
