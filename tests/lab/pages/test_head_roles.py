"""Finding heads on the page Heads: labels, filter, order, and the heads that send one word to another."""

from __future__ import annotations

import pytest
import torch

from regard.lab.server.jobs import Job

from ..api_call import ask

pytestmark = pytest.mark.browser
TEXT = "one two three four five six seven eight one two three"
GIVEN = {"model": "llama", "input": {"text": TEXT}}


@pytest.fixture
def finder(open_lab):
    page = open_lab(f"heads?model=llama&lang=en&text={TEXT}")
    page.wait_for_function("() => window.lab.part('roles')")
    return page


def test_labels_and_scores_are_those_of_the_call(finder, lab):
    answer = ask(lab, "heads/roles", **GIVEN, examples=True)
    rows = finder.evaluate("window.lab.part('roles')")
    assert len(rows) == 8
    for row in rows:
        held = answer["attentions"][row["attention"]]
        label = held["labels"][row["head"]]
        assert row["label"] == label
        if label in answer["roles"]:
            wanted = float(held["score"][row["head"], answer["roles"].index(label)])
            assert row["score"] == pytest.approx(wanted, abs=1e-6)


def test_a_role_is_filtered_and_the_list_sorted(finder, lab):
    rows = {f"{row['attention']}.{row['head']}": row for row in finder.evaluate("window.lab.part('roles')")}
    order = [*ask(lab, "heads/roles", **GIVEN, examples=True)["roles"], "broad", "mixed"]
    listed = finder.locator(".finder tbody [data-head]").evaluate_all("all => all.map(one => one.dataset.head)")
    keys = [(order.index(rows[name]["label"]), -(rows[name]["score"] or 0)) for name in listed]
    assert len(keys) == 8 and keys == sorted(keys)  # heads with a clear role first
    labels = [row["label"] for row in rows.values()]
    role = labels[0]
    finder.click(f".role-chips [data-role='{role}']")
    finder.ready()
    assert finder.locator(".finder tbody tr").count() == labels.count(role)
    assert f"role={role}" in finder.address()
    finder.click(".role-chips [data-role='']")
    finder.click(".finder [data-order=head]")
    finder.ready()
    heads = finder.locator(".finder tbody [data-head]").evaluate_all("all => all.map(one => one.dataset.head)")
    assert heads == [f"{layer}.{head}" for layer in range(2) for head in range(4)]


def test_which_heads_send_one_word_to_another(finder, lab):
    finder.fill("[data-focus=pair-from]", "six")
    finder.fill("[data-focus=pair-to]", "two")
    finder.keyboard.press("Enter")
    finder.wait_for_function("() => window.lab.part('pair')")
    finder.ready()
    capture = lab.capture(GIVEN, Job())
    names = [token.text.strip() for token in capture.tokens["source"]]
    query, keys = names.index("six"), [n for n, name in enumerate(names) if name == "two"]
    weights = torch.stack([attention.weights(None)[:, query, keys].sum(-1) for attention in capture.attentions])
    order = finder.evaluate("window.lab.part('pair')")
    assert [one["weight"] for one in order] == pytest.approx(sorted(weights.flatten().tolist(), reverse=True), abs=1e-6)
    first = finder.locator(".finder tbody [data-head]").first.get_attribute("data-head")
    assert first == f"{order[0]['attention']}.{order[0]['head']}"
    assert "is the strongest" in finder.locator(".head-finder [role=status]").inner_text()
    shown = finder.evaluate("window.lab.read()")  # the strongest head is shown, at the two words
    assert [shown["attention"], shown["head"], shown["query"]] == [order[0]["attention"], order[0]["head"], query]
    assert finder.evaluate("window.lab.part('map')")["column"] == keys[0]
    second = f"{order[1]['attention']}.{order[1]['head']}"
    finder.click(f".finder [data-head='{second}']")
    finder.ready()
    assert f"attention={order[1]['attention']}&head={order[1]['head']}" in finder.address()
    finder.fill("[data-focus=pair-to]", "zebra")
    finder.keyboard.press("Enter")
    finder.ready()
    assert "No token is" in finder.locator(".head-finder [role=status]").inner_text()


def test_both_languages_have_the_same_texts(finder):
    english, chinese = finder.evaluate("""async () => { const { text } = await import("lab/head_roles.js");
      const types = held => Object.fromEntries(Object.entries(held).map(([key, value]) => [key, typeof value]));
      return [types(text.en), types(text.zh)]; }""")
    assert english == chinese
