"""Roles of heads: of weights made by hand, where the role is known, and of the heads of shipped models."""

from __future__ import annotations

import pytest
import torch

from regard import BadInput
from regard.lab.inputs.model_input import Token
from regard.lab.inspect.head_roles import MIN_QUERIES, ROLES, RoleScores, distance_means, label_heads
from regard.lab.inspect.role_targets import TaggedWord, role_targets, syntax_pairs
from regard.lab.lab import Lab
from regard.lab.library import ModelLibrary
from regard.lab.server.jobs import Job

from ..api_call import ask

TEXT = "the red cat saw the old dog , and the red cat ran to the old dog ."
WORDS = TEXT.split()
CLAUSE = ["DET", "ADJ", "NOUN", "VERB"]
TAGS = [*CLAUSE, "DET", "ADJ", "NOUN", "PUNCT", "CCONJ", *CLAUSE, "ADP", "DET", "ADJ", "NOUN", "PUNCT"]


def tokens() -> list[Token]:
    starts = [sum(len(word) + 1 for word in WORDS[:n]) for n in range(len(WORDS))]
    return [Token(word, start, start + len(word)) for word, start in zip(WORDS, starts, strict=True)]


def tag_tokens() -> list[TaggedWord]:
    return [TaggedWord(token.start, token.end, tag) for token, tag in zip(tokens(), TAGS, strict=True)]


def weights_of(keys: torch.Tensor, allowed: torch.Tensor, strength: float = 0.8) -> torch.Tensor:
    """Weights with `strength` on a role's keys and the rest spread over all allowed ones; uniform without a key."""
    uniform = allowed / allowed.sum(-1, keepdim=True).clamp(min=1)
    keys = keys & allowed
    own = keys / keys.sum(-1, keepdim=True).clamp(min=1)
    return torch.where(keys.any(-1, keepdim=True), strength * own + (1 - strength) * uniform, uniform)


def measure(weights: torch.Tensor, allowed: torch.Tensor, times: int = 3) -> RoleScores:
    scores = RoleScores.empty(len(weights))
    for _ in range(times):
        scores.add(weights, allowed.expand_as(weights), role_targets(tokens(), tag_tokens()))
    return scores


@pytest.mark.parametrize("causal", [False, True])
def test_a_head_made_for_a_role_gets_its_label(causal):
    count, targets = len(WORDS), role_targets(tokens(), tag_tokens())
    allowed = torch.ones(count, count, dtype=torch.bool)
    allowed = allowed.tril() if causal else allowed
    roles = [role for role in ROLES if bool((targets[role] & allowed).any())]
    assert {"previous", "self", "first", "separator", "same", "induction", "noun_modifier"} <= set(roles)
    weights = torch.stack([weights_of(targets[role], allowed) for role in roles])
    scores = measure(weights, allowed, 8)
    counted = [n for n, role in enumerate(roles) if scores.queries[ROLES.index(role)] >= MIN_QUERIES]
    assert len(counted) >= 9
    labels = scores.labels()
    for n in counted:
        assert labels[n] == roles[n], (roles[n], labels[n], scores.share[n])


def test_score_and_chance_are_the_means_they_say():
    count = len(WORDS)
    allowed = torch.ones(count, count, dtype=torch.bool)
    weights = torch.rand(2, count, count, dtype=torch.float64).softmax(-1)
    scores = measure(weights, allowed, 1)
    diagonal = weights.diagonal(-1, 1, 2)
    n = ROLES.index("previous")
    assert scores.queries[n] == count - 1
    torch.testing.assert_close(scores.score[:, n], diagonal.mean(-1))
    torch.testing.assert_close(scores.chance[:, n], torch.full((2,), 1 / count, dtype=torch.float64))
    torch.testing.assert_close(scores.share[:, n], (diagonal.mean(-1) - 1 / count) / (1 - 1 / count))
    entropy = -(weights * weights.log()).sum(-1).mean(-1) / torch.tensor(float(count)).log()
    torch.testing.assert_close(scores.evenness, entropy)


def test_a_uniform_head_is_broad_and_has_no_share_of_anything():
    count = len(WORDS)
    allowed = torch.ones(count, count, dtype=torch.bool).tril()
    scores = measure(weights_of(torch.zeros_like(allowed), allowed)[None], allowed)
    assert scores.labels() == ["broad"] and float(scores.share.max()) < 1e-6


def test_a_head_of_a_distance_is_not_taken_for_a_syntactic_one():
    """Three places back is where many modifiers stand; a head that always looks there reads no words."""
    count = len(WORDS)
    i, j = torch.arange(count)[:, None], torch.arange(count)[None, :]
    allowed = torch.ones(count, count, dtype=torch.bool)
    scores = measure(weights_of(j == i - 2, allowed, 0.9)[None], allowed, 8)
    n = ROLES.index("noun_modifier")
    assert float(scores.score[0, n]) > 0.5 > float(scores.share[0, n])
    assert scores.labels() == ["nearby"]


def test_means_by_distance_leave_the_pair_itself_out():
    weights = torch.rand(1, 5, 5, dtype=torch.float64)
    means = distance_means(weights, torch.ones(1, 5, 5, dtype=torch.bool))
    others = [float(weights[0, i, i + 1]) for i in range(4) if i != 2]
    assert float(means[0, 2, 3]) == pytest.approx(sum(others) / 3)
    assert float(means[0, 0, 4]) == 0.0


def test_pairs_of_words():
    words = [TaggedWord(n, n + 1, tag) for n, tag in enumerate(TAGS)]
    pairs = syntax_pairs(words)
    assert (
        (0, 2) in pairs["modifier_noun"] and (2, 0) in pairs["noun_modifier"] and (13, 16) in pairs["preposition_noun"]
    )
    assert pairs["verb_subject"] == [(3, 2), (12, 11)] and pairs["verb_object"] == [(3, 6)]
    assert syntax_pairs([]) == {}


def test_keys_of_other_tokens_have_fewer_roles():
    found = role_targets(tokens()[:3], keys=[Token("<s>", special=True), Token("a"), Token(".")])
    assert found["separator"].tolist() == [[True, False, True]] * 3 and set(found) == {"first", "separator"}


@pytest.fixture(scope="module")
def shipped_lab() -> Lab:
    return Lab(ModelLibrary())


def test_shipped_writer_has_previous_token_and_syntactic_heads(shipped_lab):
    found = ask(shipped_lab, "heads/roles", model="writer", input={"text": "Once upon a time there was a little girl."})
    labels = [label for attention in found["attentions"] for label in attention["labels"]]
    assert {"previous", "self", "first"} <= set(labels)
    assert any("_" in label for label in labels), labels
    layer, head = next(
        (n, h)
        for n, one in enumerate(found["attentions"])
        for h, label in enumerate(one["labels"])
        if label == "previous"
    )
    text = "The dog saw a bird and the bird saw the dog."
    weights = shipped_lab.capture({"model": "writer", "input": {"text": text}}, Job()).attentions[layer].weights(head)
    assert float(weights.diagonal(-1).mean()) > 0.5
    assert found["texts"] == 11 and found["counted"]


def test_one_text_alone_and_a_text_too_long(shipped_lab):
    request = {"model": "tagger", "input": {"text": TEXT}}
    alone = ask(shipped_lab, "heads/roles", **request, examples=False)
    assert alone["texts"] == 1
    scores = label_heads([shipped_lab.capture(request, Job())])
    n = ROLES.index("next")
    torch.testing.assert_close(alone["attentions"][1]["score"][:, n], scores[1].score[:, n].float())
    long = {"model": "tagger", "input": {"text": "word " * 600}}
    assert not ask(shipped_lab, "heads/roles", **long)["counted"]
    with pytest.raises(BadInput, match="512"):
        ask(shipped_lab, "heads/roles", **long, examples=False)


def test_heads_are_ranked_by_a_pair_of_words(shipped_lab):
    request = {"model": "writer", "input": {"text": "The nurse said that her friend was late."}}
    capture = shipped_lab.capture(request, Job())
    names = [token.text.strip() for token in capture.tokens["source"]]
    query, key = names.index("her"), names.index("nurse")
    found = ask(shipped_lab, "heads/pair", **request, queries=[query], keys=[key])
    weights = torch.stack([attention.weights(None)[:, query, key] for attention in capture.attentions])
    torch.testing.assert_close(torch.stack(found["weights"]), weights.float(), atol=1e-6, rtol=0)
    best = found["order"][0]
    assert best["weight"] == pytest.approx(float(weights.max()), abs=1e-6)
    assert weights[best["attention"], best["head"]] == weights.max()
    ranked = sorted(weights.flatten().tolist(), reverse=True)
    assert [one["weight"] for one in found["order"]] == pytest.approx(ranked, abs=1e-6)
    both = ask(shipped_lab, "heads/pair", **request, queries=[query, query + 1], keys=[0, key])
    wanted = torch.stack(
        [a.weights(None)[:, [query, query + 1]][:, :, [0, key]].sum(-1).mean(-1) for a in capture.attentions]
    )
    torch.testing.assert_close(torch.stack(both["weights"]), wanted.float(), atol=1e-6, rtol=0)
    for wrong in ({"queries": [], "keys": [0]}, {"queries": [0, 0], "keys": [1]}, {"queries": [0], "keys": [99]}):
        with pytest.raises(BadInput):
            ask(shipped_lab, "heads/pair", **request, **wrong)
