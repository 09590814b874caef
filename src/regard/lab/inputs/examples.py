"""The inputs that stand ready, in both languages."""

EXAMPLES = [
    {
        "name": "animal",
        "kind": "text",
        "text": "The animal didn't cross the street because it was too tired.",
        "title": {"en": "What does “it” attend to?", "zh": "“it” 关注哪个词？"},
    },
    {
        "name": "wide",
        "kind": "text",
        "text": "The animal didn't cross the street because it was too wide.",
        "title": {"en": "The same with “too wide”", "zh": "换成 too wide"},
    },
    {
        "name": "mat",
        "kind": "text",
        "text": "猫 坐在 垫子",
        "title": {"en": "The cat sat on the mat (Chinese)", "zh": "猫坐在垫子上"},
    },
    {
        "name": "chase",
        "kind": "text",
        "text": "猫追狗",
        "other": "狗追猫",
        "title": {"en": "Cat chases dog, dog chases cat (Chinese)", "zh": "猫追狗，狗追猫"},
    },
    {
        "name": "hit",
        "kind": "text",
        "text": "A打了B",
        "other": "B打了A",
        "title": {"en": "A hit B, B hit A (Chinese)", "zh": "A打了B，B打了A"},
    },
    {
        "name": "fruit",
        "kind": "dictionary",
        "asked": "fruit",
        "entries": {"apple": 10, "banana": 5, "chair": 2},
        "title": {"en": "Dictionary of fruit", "zh": "水果字典"},
    },
    {
        "name": "grey-ball",
        "kind": "text",
        "text": "white ball white ball white ball grey ball white ball white ball",
        "title": {"en": "One grey ball among white balls", "zh": "白球中的灰球（英文）"},
    },
    {
        "name": "灰球",
        "kind": "text",
        "text": "白球 白球 白球 灰球 白球 白球",
        "title": {"en": "One grey ball among white balls (Chinese)", "zh": "白球中的灰球"},
    },
]
