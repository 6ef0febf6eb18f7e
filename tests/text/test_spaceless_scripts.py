"""Scripts without spaces between words: BM25 finds their passages, and passages have the size asked for."""

from itertools import pairwise

import numpy as np
import pytest

from raypipe.text.bm25 import DEFAULTS, Bm25Corpus, scores
from raypipe.text.page_parser import to_text
from raypipe.text.words import analyse, character_windows, nested_windows, word_hash

SETS = {  # passages, and for each a question in other words than a whole sentence of it
    "Chinese": (
        "水泵的保修期为三十个月。",
        "软管在马尔默生产。",
        "仓库每天晚上十点关门。",
        "博物馆的门票为十二欧元。",
        "图书馆周末不开放。",
        "这台发动机的最大功率是九十千瓦。",
        "退货必须在十四天内寄出。",
        "蓝色过滤器每年更换一次。",
    ),
    "Japanese": (
        "ポンプの保証期間は三十か月です。",
        "ホースはマルメで作られています。",
        "倉庫は毎晩十時に閉まります。",
        "博物館の入場料は十二ユーロです。",
        "図書館は週末に開いていません。",
        "エンジンの最大出力は九十キロワットです。",
        "返品は十四日以内に送ってください。",
        "青いフィルターは年に一度交換します。",
    ),
    "Thai": (
        "ปั๊มน้ำมีการรับประกันสามสิบเดือน",
        "สายยางผลิตที่เมืองมัลเมอ",
        "โกดังปิดทุกคืนเวลาสี่ทุ่ม",
        "บัตรเข้าพิพิธภัณฑ์ราคาสิบสองยูโร",
        "ห้องสมุดไม่เปิดในวันหยุดสุดสัปดาห์",
        "กำลังสูงสุดของเครื่องยนต์คือเก้าสิบกิโลวัตต์",
        "ต้องส่งคืนสินค้าภายในสิบสี่วัน",
        "ไส้กรองสีน้ำเงินเปลี่ยนปีละครั้ง",
    ),
    "Korean": (
        "펌프의 보증 기간은 서른 달입니다.",
        "호스는 말뫼에서 만듭니다.",
        "창고는 매일 밤 열 시에 닫습니다.",
        "박물관 입장료는 십이 유로입니다.",
        "도서관은 주말에 열지 않습니다.",
        "엔진의 최대 출력은 구십 킬로와트입니다.",
        "반품은 십사 일 안에 보내야 합니다.",
        "파란 필터는 일 년에 한 번 바꿉니다.",
    ),
    "Russian": (
        "Гарантия на насос действует тридцать месяцев.",
        "Шланг делают в Мальмё.",
        "Склад закрывается в десять вечера.",
        "Билет в музей стоит двенадцать евро.",
        "Библиотека не работает по выходным.",
        "Мощность двигателя девяносто киловатт.",
        "Товар возвращают за четырнадцать дней.",
        "Синий фильтр меняют раз в год.",
    ),
}
ASKED = {
    "Chinese": (
        "水泵保修多久?",
        "软管在哪里生产?",
        "仓库几点关门?",
        "博物馆门票多少钱?",
        "图书馆哪天不开放?",
        "发动机的功率有多大?",
        "多少天内可以退货?",
        "过滤器多久更换?",
    ),
    "Japanese": (
        "ポンプの保証は何か月?",
        "ホースはどこで作る?",
        "倉庫は何時に閉まる?",
        "博物館の入場料はいくら?",
        "図書館はいつ開いていない?",
        "エンジンの出力は?",
        "返品はいつまで?",
        "フィルターの交換は?",
    ),
    "Thai": (
        "ปั๊มรับประกันกี่เดือน",
        "สายยางผลิตที่ไหน",
        "โกดังปิดกี่โมง",
        "พิพิธภัณฑ์ราคาเท่าไร",
        "ห้องสมุดเปิดวันไหน",
        "เครื่องยนต์มีกำลังเท่าไร",
        "ส่งคืนภายในกี่วัน",
        "เปลี่ยนไส้กรองบ่อยแค่ไหน",
    ),
    "Korean": (
        "펌프 보증은 몇 달?",
        "호스를 어디서 만드나?",
        "창고가 몇 시에 닫나?",
        "박물관 입장료가 얼마?",
        "도서관이 언제 열지 않나?",
        "엔진 출력은?",
        "반품을 언제까지?",
        "필터를 얼마나 자주 바꾸나?",
    ),
    "Russian": (
        "какая гарантия на насос?",
        "где делают шланг?",
        "когда закрывается склад?",
        "сколько стоит музей?",
        "когда не работает библиотека?",
        "какая мощность?",
        "когда товар возвращают?",
        "меняют фильтр?",
    ),
}


@pytest.mark.parametrize("language", SETS)
def test_bm25_finds_the_passage_of_every_question(language):
    words = [analyse(passage, "stems")[0] for passage in SETS[language]]
    pool = Bm25Corpus(np.cumsum([0, *map(len, words)]), np.concatenate(words))
    best = []
    for question in ASKED[language]:
        found, values = scores(pool, analyse(question, "stems")[0], "lucene", *DEFAULTS["lucene"])
        best.append(int(found[values.argmax()]) if len(found) else None)
    assert best == list(range(len(words)))


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("水泵的保", ["水泵", "泵的", "的保"]),
        ("b水 ABC手机", ["b", "水", "abc", "手机"]),
        ("ポンプ", ["ポン", "ンプ"]),
        ("펌프의 값", ["펌프", "프의", "값"]),
    ],
)
def test_words_are_pairs_of_letters_as_lucene_has_them_and_start_where_they_stand(text, words):
    hashes, starts = analyse(text, "stems")
    assert hashes.tolist() == [word_hash(word) for word in words]
    assert [text[s].lower() for s in starts] == [word[0] for word in words]


def test_accents_wide_letters_and_marks_within_words_make_no_difference():
    same = {
        "Müller": "muller",
        "\ufb01lm": "film",
        "\uff30\uff35\uff2d\uff30": "pump",
        "cafe\u0301": "café",
        "Straße": "strasse",
        "Reise\u00adkosten": "reisekosten",
        "Ёлка": "елка",
    }
    for one, other in same.items():
        assert analyse(one, "stems")[0].tolist() == analyse(other, "stems")[0].tolist(), one


TIBETAN = "གཙང་པོའི་རྟོག་ཞིབ་ལ་ལོ་གསུམ་འགོར།"


@pytest.mark.parametrize("passages", [*map(SETS.get, ("Chinese", "Japanese", "Thai")), [TIBETAN]])
def test_windows_have_the_size_that_was_asked_for_and_lose_no_letter(passages):
    text = " ".join(("".join(passages) * 40).split())
    for size, overlap in ((700, 150), (50, 0)):
        spans = character_windows(text, size, overlap)
        assert all(size / 2 < b - a <= size for a, b in spans[:-1])
        assert spans[0][0] == 0 and spans[-1][1] == len(text)
        assert all(after[0] <= before[1] for before, after in pairwise(spans))
    children = nested_windows(text, 700, 100, 200, 20)
    assert max(b - a for (a, b), _ in children) <= 200 and children[-1][0][1] == len(text)


def test_a_window_of_thai_does_not_begin_with_a_vowel_sign_or_a_tone():
    text = "".join(SETS["Thai"]) * 20
    assert not {text[a] for a, _ in character_windows(text, 40, 0)} & set("ะัาำิีึืุู็่้๊๋์")


def test_soft_hyphens_and_marks_without_width_are_in_no_text():
    page = "<p>Reise&shy;kosten, war&#8203;ranty, Auf&zwnj;lage, &lrm;ab, \u0645\u06cc\u200c\u062e</p>"
    for way in ("fast", "bs4"):
        assert to_text(page, via=way).text == "Reisekosten, warranty, Auflage, ab, \u0645\u06cc\u200c\u062e"
