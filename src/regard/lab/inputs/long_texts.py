"""Long example texts: verses that repeat themselves, so that a map of the whole text shows it.

English: two rhymes that grow by a line in every verse. Chinese: songs of the Book of Songs (诗经) in parallel stanzas.
"""

from __future__ import annotations

BUILT = (
    "the malt that lay in",
    "the rat that ate",
    "the cat that killed",
    "the dog that worried",
    "the cow with the crumpled horn that tossed",
    "the maiden all forlorn that milked",
    "the man all tattered and torn that kissed",
    "the priest all shaven and shorn that married",
    "the cock that crowed in the morn that waked",
    "the farmer sowing his corn that kept",
)
"""What stands before “the house that Jack built”, one more in every verse."""

DAYS = (
    "first",
    "second",
    "third",
    "fourth",
    "fifth",
    "sixth",
    "seventh",
    "eighth",
    "ninth",
    "tenth",
    "eleventh",
    "twelfth",
)
GIFTS = (
    "a partridge in a pear tree",
    "two turtle doves",
    "three French hens",
    "four calling birds",
    "five gold rings",
    "six geese a-laying",
    "seven swans a-swimming",
    "eight maids a-milking",
    "nine ladies dancing",
    "ten lords a-leaping",
    "eleven pipers piping",
    "twelve drummers drumming",
)

SONGS = """\
关关雎鸠，在河之洲。窈窕淑女，君子好逑。
参差荇菜，左右流之。窈窕淑女，寤寐求之。
求之不得，寤寐思服。悠哉悠哉，辗转反侧。
参差荇菜，左右采之。窈窕淑女，琴瑟友之。
参差荇菜，左右芼之。窈窕淑女，钟鼓乐之。

桃之夭夭，灼灼其华。之子于归，宜其室家。
桃之夭夭，有蕡其实。之子于归，宜其家室。
桃之夭夭，其叶蓁蓁。之子于归，宜其家人。

采采芣苢，薄言采之。采采芣苢，薄言有之。
采采芣苢，薄言掇之。采采芣苢，薄言捋之。
采采芣苢，薄言袺之。采采芣苢，薄言襭之。

蒹葭苍苍，白露为霜。所谓伊人，在水一方。溯洄从之，道阻且长。溯游从之，宛在水中央。
蒹葭萋萋，白露未晞。所谓伊人，在水之湄。溯洄从之，道阻且跻。溯游从之，宛在水中坻。
蒹葭采采，白露未已。所谓伊人，在水之涘。溯洄从之，道阻且右。溯游从之，宛在水中沚。

硕鼠硕鼠，无食我黍！三岁贯女，莫我肯顾。逝将去女，适彼乐土。乐土乐土，爰得我所。
硕鼠硕鼠，无食我麦！三岁贯女，莫我肯德。逝将去女，适彼乐国。乐国乐国，爰得我直。
硕鼠硕鼠，无食我苗！三岁贯女，莫我肯劳。逝将去女，适彼乐郊。乐郊乐郊，谁之永号？

坎坎伐檀兮，置之河之干兮，河水清且涟猗。不稼不穑，胡取禾三百廛兮？不狩不猎，胡瞻尔庭有县貆兮？彼君子兮，不素餐兮！
坎坎伐辐兮，置之河之侧兮，河水清且直猗。不稼不穑，胡取禾三百亿兮？不狩不猎，胡瞻尔庭有县特兮？彼君子兮，不素食兮！
坎坎伐轮兮，置之河之漘兮，河水清且沦猗。不稼不穑，胡取禾三百囷兮？不狩不猎，胡瞻尔庭有县鹑兮？彼君子兮，不素飧兮！

岂曰无衣？与子同袍。王于兴师，修我戈矛。与子同仇！
岂曰无衣？与子同泽。王于兴师，修我矛戟。与子偕作！
岂曰无衣？与子同裳。王于兴师，修我甲兵。与子偕行！

投我以木瓜，报之以琼琚。匪报也，永以为好也！
投我以木桃，报之以琼瑶。匪报也，永以为好也！
投我以木李，报之以琼玖。匪报也，永以为好也！

采薇采薇，薇亦作止。曰归曰归，岁亦莫止。靡室靡家，猃狁之故。不遑启居，猃狁之故。
采薇采薇，薇亦柔止。曰归曰归，心亦忧止。忧心烈烈，载饥载渴。我戍未定，靡使归聘。
采薇采薇，薇亦刚止。曰归曰归，岁亦阳止。王事靡盬，不遑启处。忧心孔疚，我行不来。

呦呦鹿鸣，食野之苹。我有嘉宾，鼓瑟吹笙。吹笙鼓簧，承筐是将。人之好我，示我周行。
呦呦鹿鸣，食野之蒿。我有嘉宾，德音孔昭。视民不恌，君子是则是效。我有旨酒，嘉宾式燕以敖。
呦呦鹿鸣，食野之芩。我有嘉宾，鼓瑟鼓琴。鼓瑟鼓琴，和乐且湛。我有旨酒，以燕乐嘉宾之心。
"""


def verses(language: str) -> str:
    """Verses in a language, "en" or "zh".

    >>> verses("en")[:34]
    'This is the house that Jack built.'
    """
    if language == "zh":
        return SONGS
    return "\n".join([*house_that_jack_built(), *twelve_days_of_christmas()])


def house_that_jack_built() -> list[str]:
    lines = ["This is the house that Jack built."]
    for count in range(1, len(BUILT) + 1):
        parts = [*reversed(BUILT[:count]), "the house that Jack built"]
        lines.append(f"This is {' '.join(parts)}.")
    return lines


def twelve_days_of_christmas() -> list[str]:
    first, *others = GIFTS
    lines = []
    for n, day in enumerate(DAYS):
        gifts = [*reversed(others[:n]), f"and {first}" if n else first]
        lines.append(f"On the {day} day of Christmas my true love sent to me {', '.join(gifts)}.")
    return lines
