"""English sentences about six topics, and longer ones about anything: what a text encoder is probed with."""

from __future__ import annotations

import torch

TOPICS = {
    "medicine": "doctor nurse hospital patient surgeon clinic fever vaccine bandage pill wound therapy",
    "cooking": "kitchen oven soup recipe butter onion pepper bread chef sauce flour plate",
    "sport": "team coach goal stadium player match referee tennis trophy racket league score",
    "law": "judge court lawyer trial jury verdict prison witness crime statute police appeal",
    "music": "piano violin concert song orchestra singer guitar melody drum choir rhythm trumpet",
    "sea": "ship sailor harbour anchor captain wave boat sail island storm whale dock",
}
FRAMES = (
    "nobody in the room had expected that the {} would come before the {}",
    "she wrote a long letter about the {} and said little of the {}",
    "on the next page there is a picture of a {} beside a {}",
    "they talked for an hour about the {}, and then about the {}",
    "when i asked him, he could only remember the {} and perhaps a {}",
    "the second part of the book begins with a {} and ends with the {}",
    "it was late, but the {} was still more important than the {}",
    "my brother has always wanted to know more about a {} than about a {}",
    "in the old photograph you can see the {} and, behind it, the {}",
    "few people know why the {} has so much to do with the {}",
)
LONG_SENTENCES = (
    "The river rises in the hills north of the town, runs past the old mill where my grandfather worked as a boy, and "
    "only becomes wide enough for boats after it has met the canal that the engineers dug a century ago.",
    "Although the committee had promised an answer before the end of March, the letter that finally reached us in June "
    "contained nothing except a polite request to send the same documents once more.",
    "If you leave the bread in the oven for ten minutes longer than the recipe says, the crust becomes dark and hard, "
    "but the inside stays soft and tastes a little sweeter than it would otherwise.",
    "The telescope, which had been built by students over three long winters, showed them the rings of Saturn on the "
    "very first clear night, and none of them went home before the sun came up.",
    "Prices fell sharply in the morning because traders feared a strike at the harbour, then recovered when the union "
    "announced that its members would return to work at the beginning of the following week.",
    "The dog that belongs to our neighbours barks at every cyclist who passes the gate, yet it has never once made a "
    "sound when the postman walks up the path with a parcel under his arm.",
    "She had learned the piece by heart as a child, forgotten it during the years abroad, and was surprised that her "
    "fingers found the first chords again as soon as she sat down at the piano.",
    "Before the bridge was built, people who wanted to visit their relatives on the other side had to wait for a ferry "
    "that crossed only twice a day and not at all when the wind was strong.",
)


def sample_sentences(count: int, held_out: bool, seed: int) -> tuple[list[str], list[int]]:
    """Sentences with two nouns of one topic each, and the numbers of their topics.

    Half of each topic's nouns, drawn by `seed`, are held out: sentences have either only those or only the others.
    """
    split, generator = (torch.Generator("cpu").manual_seed(seed + n) for n in (0, 1 + held_out))
    halves = []
    for text in TOPICS.values():
        nouns = text.split()
        order, middle = torch.randperm(len(nouns), generator=split, device="cpu").tolist(), len(nouns) // 2
        halves.append([nouns[n] for n in (order[middle:] if held_out else order[:middle])])
    sentences, topics = [], []
    for n in range(count):
        topic = n % len(halves)
        first, second, *_ = torch.randperm(len(halves[topic]), generator=generator, device="cpu").tolist()
        frame = FRAMES[int(torch.randint(len(FRAMES), (), generator=generator, device="cpu"))]
        sentences.append(frame.format(halves[topic][first], halves[topic][second]))
        topics.append(topic)
    return sentences, topics
