"""BLEU is sacreBLEU's; metric and tokenizer follow from the texts."""

import pytest

from regard.data.text import Parallel
from regard.tasks.metrics.bleu import Scoring, bleu
from regard.tasks.translate import Translate, TranslateSettings


def test_bleu_is_sacrebleus_and_says_how():
    import sacrebleu

    said = ["the cat sat on the mat .", "A small dog runs"]
    references = [["the cat sat on a mat ."], ["a small dog runs", "A little dog runs fast"]]
    metrics, details = bleu(said, references)
    both = [["the cat sat on a mat .", "a small dog runs"], [None, "A little dog runs fast"]]
    assert metrics["bleu"] == sacrebleu.BLEU().corpus_score(said, both).score
    assert metrics["bleu"] < metrics["bleu_lower"] == sacrebleu.BLEU(lowercase=True).corpus_score(said, both).score
    assert metrics["chrf"] == sacrebleu.CHRF().corpus_score(said, both).score
    assert "tok:13a" in details["signatures"]["bleu"] and "case:lc" in details["signatures"]["bleu_lower"]
    assert bleu([r[-1] for r in references], references)[0]["bleu"] == pytest.approx(100.0)


def test_french_is_parted_after_an_apostrophe_as_the_published_files_are():
    import sacrebleu

    said = ["Un chien court sur l'herbe verte devant une clôture.", "Des gens réparent le toit d'une maison."]
    right = ["Un terrier court sur l'herbe devant une clôture.", "Des gens réparent le toit d'une maison."]
    parted = [text.lower().replace("'", "' ").replace(".", " .") for text in said + right]
    assert parted[1] == "des gens réparent le toit d' une maison ."
    metrics, details = bleu(said, [[text] for text in right], "fr", lowercase=True)
    assert metrics["bleu"] == sacrebleu.BLEU(tokenize="none").corpus_score(parted[:2], [parted[2:]]).score
    assert metrics["bleu"] != sacrebleu.BLEU(lowercase=True).corpus_score(said, [right]).score
    assert metrics["chrf"] == sacrebleu.CHRF().corpus_score(said, [right]).score
    assert details["signatures"]["bleu"].endswith("|elided") and "tok:13a" in details["signatures"]["bleu"]


@pytest.mark.parametrize(
    "target, tokenize",
    [
        ("我喜欢猫和狗。", "zh"),
        ("猫が好きです。", "char"),
        ("ฉันชอบแมว", "char"),
        ("Ich mag Katzen.", "13a"),
        ("저는 고양이를 좋아해요.", "13a"),
    ],
)
def test_the_tokenizer_follows_the_script_of_the_targets(target, tokenize):
    assert Scoring.from_texts(["I like cats."] * 3, [target] * 3) == Scoring("bleu", tokenize)


def test_summaries_are_scored_by_rouge():
    article, summary = "word " * 60, "a short summary"
    assert Scoring.from_texts([article], [summary]).metric == "rouge"
    assert Scoring.from_texts([article], [article]).metric == "bleu"
    assert Scoring.from_texts(["three short words"], ["one"]).metric == "bleu"


@pytest.mark.parametrize(
    "source, target, metric",
    [
        ("the old cat of the house sat on the mat and slept for hours", "the old cat slept for hours", "rouge"),
        ("这家餐厅的菜很好吃，服务员也很热情，下次还会再来", "餐厅的菜好吃，服务热情", "rouge"),
        ("这家餐厅的菜很好吃，服务员也很热情，下次还会再来", "The food was good and the staff was kind", "bleu"),
        ("the old cat of the house sat on the mat and slept for hours", "die alte Katze schlief", "bleu"),
        (
            "he go to school every day and learn many new word",
            "he goes to school every day and learns many new words",
            "bleu",
        ),
    ],
)
def test_shorter_targets_in_the_words_of_their_sources_are_summaries(source, target, metric):
    assert Scoring.from_texts([source] * 3, [target] * 3).metric == metric


def test_settings_overrule_and_a_saved_task_keeps_its_scoring():
    examples = [Parallel("I like cats.", "我喜欢猫。", ("我喜欢猫。",))] * 30
    task = Translate.prepare(examples, TranslateSettings(unit="characters"))
    assert task.scoring == Scoring("bleu", "zh") and "zh" in task.choices(examples)[0]
    assert Translate.from_dict(task.as_dict(), task.settings, task.tokenizer).scoring == task.scoring
    assert Translate.prepare(examples, TranslateSettings(unit="characters", tokenize="13a")).scoring.tokenize == "13a"
    old = {name: value for name, value in task.as_dict().items() if name != "scoring"}
    assert Translate.from_dict(old, TranslateSettings(tokenize="zh"), task.tokenizer).scoring.tokenize == "zh"
