"""Words for rows: every sentence names the entity, the attribute and the value."""

import pytest


@pytest.mark.parametrize(
    ("program", "expected"),
    [
        ("get_movie(amelie)[release_date]", ("The release date of the movie Amélie is 2001-04-25.",)),
        (
            "get_movie('small town ecstasy')[genres]",
            ("The genres of the movie Small Town Ecstasy is Documentary, Drama.",),
        ),
        ("get_movie(None)[len]", ("The number of movie rows is 5.",)),
        ("get_person('the larks')[members][len]", ("The number of members values of The Larks is 2.",)),
        ("get_movie_person_cast(amelie, None)", ("Zak Santiago played Max in the movie Amélie (2001).",)),
        ("get_movie_person_crew(amelie, None)", ("The Director of the movie Amélie (2001) was Ana Lima.",)),
        (
            "get_movie_person_oscar('the descendants', None)",
            (
                "In 2012, George Clooney was nominated for the Oscar but did not win in the "
                "category actor in a"
                " leading role for the film The Descendants.",
            ),
        ),
        (
            "get_stock_price(msft, yesterday)[close]",
            ("On 2024-03-04 the close of Microsoft Corporation Common Stock (MSFT) was 14.",),
        ),
        (
            "get_stock_price(x, latest)[open]",
            ("On 2024-03-05 at 13:00 Eastern the open of United States Steel Corp. (X) was 14.5.",),
        ),
        (
            "get_stock_price(x, 2024-03-02)[open]",
            (
                "There is no trading record of 2024-03-02; the nearest is of 2024-03-04.",
                "On 2024-03-04 the open of United States Steel Corp. (X) was 11.",
            ),
        ),
        (
            "ALL get_stock_price(x, 2024-02-29, 2024-03-01)[close]",
            (
                "On 2024-02-29 the close of United States Steel Corp. (X) was 11.",
                "On 2024-03-01 the close of United States Steel Corp. (X) was 11.",
                "The averages of United States Steel Corp. over 2 trading days from 2024-02-29 to 2024-03-01:"
                " open 11, high 20, low 1, close 11, volume 100.",
            ),
        ),
        (
            "get_stock_dividend(msft)\nsort(None, -date)[value]",
            (
                "On 2024-02-14 Microsoft Corporation Common Stock (MSFT) paid a dividend of 0.75 a share.",
                "On 2024-01-10 Microsoft Corporation Common Stock (MSFT) paid a dividend of 0.5 a share.",
                "On 2023-11-15 Microsoft Corporation Common Stock (MSFT) paid a dividend of 0.75 a share.",
            ),
        ),
        (
            "get_nba_on_date(lakers, yesterday)",
            ("On 2024-03-04 Los Angeles Lakers lost 99-120 away against Chicago Bulls.",),
        ),
        ("get_nba_on_date(lakers, 2024-01-01)", ("There is no match of Los Angeles Lakers, 2024-01-01.",)),
        (
            "get_soccer_next_game(forest)",
            (
                "On 2024-03-05 at 19:45 Nott'ham Forest plays at home against Arsenal; the "
                "result is not known.",
            ),
        ),
        (
            "get_open(orlando)",
            (
                "About the entity Orlando: the summary text is Another.; the population is "
                "307573; the county is"
                " Orange County.",
            ),
        ),
        ("get_open('florida city')[mayor]", ("The mayor of the entity Florida City is Otis Wallace.",)),
        (
            "get_open('florida city')[elevation]",
            (
                "About the entity Florida City: the summary text is A city.; the population is "
                "13,085; the mayor"
                " is Otis Wallace.",
            ),
        ),
        ("AVG(get_movie(None)[rating])", ("The average rating of the 5 movie rows is 7.175.",)),
        ("get_movie(nothing)[title]", ()),
    ],
)
def test_rows_in_words(ask, program, expected):
    assert ask(program)[-1].sentences == expected


def test_games_of_a_period_are_summed_up(ask):
    said = ask("ALL get_nba_on_date(lakers, 2024)", "03/06/2024, 10:00:00 PT")[0].sentences
    assert said[-1] == (
        "In these 3 games Los Angeles Lakers won 2 (2 at home, 0 away), lost 1 (0 at home, 1 away); it "
        "scored 339 and its opponents 318 in all."
    )


def test_no_more_than_ten_rows_are_described_and_the_rest_is_counted(graph, ask):
    said = ask("ALL get_stock_price(None, 2024)[close]", "03/07/2024, 10:00:00 PT")[0].sentences
    assert len(said) == 10, said
    rows = [
        {"year": 1990, "category": f"c{i}", "name": "Many Times", "film": f"f{i}", "winner": True}
        for i in range(14)
    ]
    graph.tables.insert("oscar", rows)
    graph.linker.forget()
    said = ask("ALL get_movie_person_oscar(None, 'many times')[film]")[0].sentences
    assert len(said) == 11 and said[-1] == "There are 4 more oscar rows."
