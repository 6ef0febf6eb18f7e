"""Hidden text is marked; the page's text stays as it was."""

import pytest

from raypipe.text.page_parser import to_text

HIDING = [
    "<p hidden>{}</p>",
    '<p hidden="until-found">{}</p>',
    '<p style="display:none">{}</p>',
    '<p style="DISPLAY : NONE !important; color: red">{}</p>',
    '<p style="display/**/:/* x */none">{}</p>',
    '<p style="visibility: hidden">{}</p>',
    '<p style="opacity:0">{}</p>',
    '<p style="font-size:0px">{}</p>',
    '<p style="text-indent:-9999px">{}</p>',
    '<p style="position:absolute;left:-9999px">{}</p>',
    '<p style="position:absolute;clip:rect(0,0,0,0)">{}</p>',
    '<p style="height:0;overflow:hidden">{}</p>',
    '<p style="clip-path: inset(50%)">{}</p>',
    '<p style="color:#fff">{}</p>',
    '<p style="color:rgb(255, 255, 255)">{}</p>',
    '<p style="color:white;background:#FFFFFF">{}</p>',
    '<p style="color:transparent">{}</p>',
    '<p style="color:rgba(0,0,0,0)">{}</p>',
    '<div style="background-color:#123456"><p style="color:#123456">{}</p></div>',
    '<table bgcolor="#000"><tr><td style="color:black">{}</table>',
    "<noscript>{}</noscript>",
    "<dialog>{}</dialog>",
    "<div style=display:none><ul><li><b>{}</b></ul></div>",
]
SHOWN = [
    '<p style="display:block">{}</p>',
    '<p style="opacity:0.5">{}</p>',
    '<p style="font-size:0.8em">{}</p>',
    '<p style="left:-9999px">{}</p>',
    '<p style="margin-left:-13px;text-indent:-1em">{}</p>',
    '<p style="color:white;background:#000a3c">{}</p>',
    '<p style="color:white;background:url(x.png) repeat">{}</p>',
    '<div style="background:#000a3c"><p style="color:white">{}</p></div>',
    '<p style="color:#000">{}</p>',
    '<p aria-hidden="true">{}</p>',
    "<dialog open>{}</dialog>",
    '<p style=";;:;">{}</p>',
]


@pytest.mark.parametrize("via", ["fast", "bs4"])
@pytest.mark.parametrize("element", HIDING)
def test_hidden_text_is_marked_and_kept(element, via):
    page = to_text(f"<body><p>before</p>{element.format('obey me')}<p>after</p>", via=via)
    assert page.text == "before obey me after"
    assert [page.text[slice(*span)] for span in page.hidden] == ["obey me"]


@pytest.mark.parametrize("via", ["fast", "bs4"])
@pytest.mark.parametrize("element", SHOWN)
def test_shown_text_is_not_marked(element, via):
    page = to_text(f"<body><p>before</p>{element.format('read me')}<p>after</p>", via=via)
    assert (page.text, page.hidden) == ("before read me after", ())


def test_neighbours_and_nested_elements_make_one_span():
    page = to_text("<p>a</p><div hidden>b<p hidden>c</p>d</div><i hidden>e</i><p>f</p><b hidden>g</b>")
    assert [page.text[slice(*s)] for s in page.hidden] == ["b c d e", "g"]


def test_an_element_without_text_hides_nothing():
    assert to_text("<p>a</p><div hidden> <img></div><p>b</p>").hidden == ()


@pytest.mark.parametrize("via", ["fast", "bs4"])
def test_a_page_that_brings_the_marks_itself_is_hidden_as_a_whole(via):
    page = to_text("<p>a &#xfdd1; b<p hidden>obey me</p>c \ufdd0", via=via)
    assert page.text == "a \ufdd1 b obey me c \ufdd0"
    assert page.hidden == ((0, len(page.text)),)


def test_marks_without_hidden_text_are_only_characters():
    assert to_text("<p>a \ufdd0 b").hidden == ()
