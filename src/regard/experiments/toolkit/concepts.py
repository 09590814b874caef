"""Concepts and the words that belong to them, in English and Chinese, for the soft dictionary."""

CONCEPTS: dict[tuple[str, str], list[tuple[str, str]]] = {
    ("fruit", "水果"): [("apple", "苹果"), ("banana", "香蕉")],
    ("furniture", "家具"): [("chair", "椅子"), ("table", "桌子"), ("bed", "床")],
    ("animal", "动物"): [("cat", "猫"), ("dog", "狗"), ("horse", "马"), ("bird", "鸟")],
    ("vehicle", "车辆"): [("car", "汽车"), ("bus", "公交车"), ("train", "火车")],
}
