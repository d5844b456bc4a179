"""Names: root tags, the names that listeners may have, and ids of threads."""

import subprocess
import sys
import uuid

import pytest

from agentix.agentserver.errors import RegistrationError
from agentix.agentserver.names import (
    check_listener_name,
    is_ncname,
    is_thread_id,
    listener_namespace,
    new_thread_id,
    root_tag,
)


@pytest.mark.parametrize(
    ("listener", "class_name", "root"),
    [
        ("calculator.add", "AddPayload", "calculator.add.addpayload"),
        ("researcher", "ResearchPayload", "researcher.researchpayload"),
        ("web_search", "SearchPayload", "web_search.searchpayload"),
        ("search.google", "SearchPayload", "search.google.searchpayload"),
    ],
)
def test_a02_root_tags_are_derived(listener: str, class_name: str, root: str) -> None:
    assert root_tag(listener, class_name) == root


def test_a03_names_that_differ_in_case_only_give_one_root() -> None:
    assert root_tag("Calculator.ADD", "AddPayload") == "calculator.add.addpayload"
    assert root_tag("calculator.add", "addPayload") == "calculator.add.addpayload"


@pytest.mark.parametrize(
    "name", ["a", "calculator.add", "_x", "a-b.c_d.e1", "größe", "corex", "a.core"]
)
def test_listeners_may_have_xml_names_joined_by_dots(name: str) -> None:
    check_listener_name(name)


@pytest.mark.parametrize(
    "name",
    ["", ".", "a.", ".a", "a..b", "1a", "a b", "a/b", "../a", "a:b", "a\n", "<a>", "a" * 201, "-a"],
)
def test_other_names_are_refused(name: str) -> None:
    with pytest.raises(RegistrationError, match="is no listener name: it takes XML names"):
        check_listener_name(name)


@pytest.mark.parametrize("name", ["core", "system", "dummy", "Core", "system.monitor"])
def test_reserved_names_are_refused(name: str) -> None:
    with pytest.raises(RegistrationError, match="core, system, dummy are reserved"):
        check_listener_name(name)


@pytest.mark.parametrize("class_name", ["", "A.B", "A B", "1A", "A:B"])
def test_a_class_name_that_makes_no_tag_is_refused(class_name: str) -> None:
    with pytest.raises(RegistrationError, match="make no root tag"):
        root_tag("calculator", class_name)


def test_a_listener_has_a_namespace_of_its_own() -> None:
    namespace = "https://xml-pipeline.org/ns/listener/calculator.add/v1"
    assert listener_namespace("Calculator.add") == namespace


@pytest.mark.parametrize("name", ["a", "_", "a.b", "comment", "a-1", "\u00e4", "a\u00b7", "xml"])
def test_xml_names(name: str) -> None:
    assert is_ncname(name)


@pytest.mark.parametrize("name", ["", "1", "-", ".", "a:b", "a b", "\u00b7", "\u00d7", "a\u037e"])
def test_what_is_no_xml_name(name: str) -> None:
    assert not is_ncname(name)


def test_a38_only_canonical_uuids_of_version_4_are_ids_of_threads() -> None:
    known = "550e8400-e29b-41d4-a716-446655440000"
    assert is_thread_id(known)
    assert is_thread_id(new_thread_id())
    assert new_thread_id() != new_thread_id()
    for other in (
        "not-a-uuid",
        "",
        known.upper(),
        known.replace("-", ""),
        f"{{{known}}}",
        f"urn:uuid:{known}",
        f"{known}\n",
        f" {known}",
        str(uuid.uuid1()),
        str(uuid.uuid3(uuid.NAMESPACE_DNS, "a")),
        "550e8400-e29b-41d4-c716-446655440000",
        "00000000-0000-0000-0000-000000000000",
    ):
        assert not is_thread_id(other)


def test_ids_of_threads_are_random_uuids_that_come_once() -> None:
    ids = [new_thread_id() for _ in range(1_000)]
    assert len(set(ids)) == 1_000
    assert [str(uuid.UUID(each)) for each in ids] == ids
    assert {uuid.UUID(each).version for each in ids} == {4}
    for place in {*range(36)} - {8, 13, 14, 18, 23}:
        digits = "89ab" if place == 19 else "0123456789abcdef"
        assert {each[place] for each in ids} == {*digits}


FORKING = """
import os
from agentix.agentserver.names import new_thread_id
new_thread_id()
child = os.fork()
os.write(1, "".join(new_thread_id() + " " for _ in range(100)).encode())
if child:
    os.waitpid(child, 0)
"""


def test_a_process_that_is_forked_has_other_ids() -> None:
    ran = subprocess.run([sys.executable, "-c", FORKING], check=True, capture_output=True)
    assert len({*ran.stdout.split()}) == 200
