"""Programs over tables: what each operator gives, and what may not be seen."""

import pytest

CROSSED = 'get_movie_person_crew(None, "walt becker", eq(job, "Director"))'


@pytest.mark.parametrize(
    ("program", "expected"),
    [
        ('get_movie("greater meaning of water")["release_date"]', ["2010-11-14"]),
        ('get_movie("small town ecstasy")["release_date"]', ["2002-01-12"]),
        (
            'get_movie_person_oscar(None,None,[eq(year,2012),eq(category,"best actor"),eq(winner,"true")])'
            '["name"]',
            ["Jean Dujardin"],
        ),
        (f'{CROSSED}\nsort(None,-year)["movie_name"]', ["The Maze Runner"]),
        (f'{CROSSED}; sort(None,-year)["movie_name"][:3]', ["The Maze Runner", "Small Town Ecstasy"]),
        ('get_movie_person_cast(None,["Zak Santiago","Brenda Crichlow"],None)["len"]', [2]),
        ('ALL get_movie("maze runner")["title"]', ["The Maze Runner"]),
        (
            'ALL get_stock_price("x","last monday","last friday"), sort(ge(open,close),"time")["time"]',
            ["2024-03-01"],
        ),
        (
            'get_stock_dividend("microsoft")\nsort([ge("date","2024-01-01"),le("date","2024-03-31")],-date)["date"]',
            ["2024-02-14"],
        ),
    ],
)
def test_the_worked_examples_run(values, program, expected):
    assert values(program) == expected


@pytest.mark.parametrize(
    ("program", "expected"),
    [
        ("ALL get_movie(None, eq(year, 2010))", ["Greater Meaning of Water"]),
        ("ALL get_movie(None, neq(year, 2010))[year]", [2002, 2014, 2018, 2001]),
        ("ALL get_movie(None, ge(rating, 7.2))[title]", ["The Maze Runner", "Amélie"]),
        ("ALL get_movie(None, gt(rating, 7.2))[title]", ["Amélie"]),
        ("ALL get_movie(None, [le(rating, 7.1), lt(year, 2010)])[title]", ["Small Town Ecstasy"]),
        ("ALL get_movie(None, eq(rating, None))[title]", ["Maze Runner: The Death Cure"]),
        ("get_movie(None, neq(rating, None))[len]", [4]),
        ("ALL get_movie(None, eq(genres, drama))[title]", ["Greater Meaning of Water", "Small Town Ecstasy"]),
        ("ALL get_movie(None, neq(genres, drama))[year]", [2014, 2018, 2001]),
        ("ALL get_movie(None, gt(budget, revenue))[title]", ["Small Town Ecstasy"]),
        ("ALL get_movie(None, ge(release_date, 2014))[year]", [2014, 2018]),
        ("ALL get_movie(None, gt(release_date, 2014))[year]", [2018]),
        ('ALL get_movie(None, le(release_date, "2002-01"))[year]', [2002, 2001]),
        ('ALL get_movie(None, lt(release_date, "january 2002"))[year]', [2001]),
        ("get_movie(None)[genres][len]", [5]),
        ("AVG(get_movie(None)[rating])", [pytest.approx((6.5 + 7.1 + 7.2 + 7.9) / 4)]),
        ("AVG(get_movie(None)[rating][:2])", [pytest.approx(6.8)]),
        ("2 get_movie(None)[year]", [2010, 2002]),
        ("get_movie(None)[year][:3]", [2010, 2002, 2014]),
        ("ALL get_movie(None)\nsort(None, -rating)[title][:2]", ["Amélie", "The Maze Runner"]),
        ("ALL get_movie(None)\nsort(None, rating)[rating]", [6.5, 7.1, 7.2, 7.9]),
        ("ALL get_movie(None)\nsort(gt(length, 100), -length)\nsort(None, year)[year]", [2001, 2014, 2018]),
        ("get_movie(amelie)[runtime]", [122]),
        ("get_movie('le fabuleux destin')[title]", ["Amélie"]),
        (f"ALL {CROSSED}[movie_name]\nALL get_movie(*)[rating]", [7.2, 7.1]),
        (f"ALL {CROSSED}[movie_name]\nAVG(get_movie(*)[rating])", [pytest.approx(7.15)]),
        (
            f"ALL {CROSSED}\nALL get_movie_person_cast(*, None)[name]",
            ["Zak Santiago", "Brenda Crichlow", "Zak Santiago", "Brenda Crichlow", "Zak Santiago"],
        ),
        ("get_movie_person_crew(amelie, None, eq(job, director))\nget_person(*)[birthday]", ["1961-02-03"]),
        (
            "get_movie_person_crew(amelie, None, eq(job, director))[name]\n"
            "get_movie_person_crew(None, *)[movie_name]\nget_movie(*)[year]",
            [2001],
        ),
        ("get_movie_person_cast(['amelie', 'the maze runner'], None)[name]", ["Zak Santiago"]),
        ("get_movie_person_cast('small town ecstasy', None, eq(character, ann))[name]", ["Brenda Crichlow"]),
        ("get_movie_person_crew(None, 'walt becker', 2010)[job]", ["Writer"]),
        (
            "ALL get_movie_person_oscar('the artist', None)[category]",
            ["actor in a leading role", "best picture"],
        ),
        ("get_movie_person_oscar(None, 'ana lima')[category]", ["best picture"]),
        ("get_stock_market_cap(microsoft)", [3000]),
        ("get_stock_pe_ratio(MSFT)", [36.0]),
        ("get_stock_eps(us steel)", []),
        ("get_stock_price(x, yesterday)[close]", [14.0]),
        ("get_stock_price(x, 'last trading day')[close]", [14.0]),
        ("get_stock_price(x, '2024-03-02')[date]", ["2024-03-04"]),
        ("get_stock_price(x, ipo)[date]", ["2024-02-29"]),
        ("get_stock_price(x, latest)[open]", [14.5]),
        ("get_stock_price(msft, latest)[close]", [14.0]),
        ("AVG(get_stock_price(x, '2024-02')[close])", [11.0]),
        ("ALL get_stock_price(x, '2024-03-01', today)[close]", [11.0, 14.0]),
        ("get_person('the larks')[members][len]", [2]),
        ("get_person('the larks')[lifespan]", ["1990-01-01"]),
        (
            "ALL get_person('the larks')[music]\nALL get_song(*)\nsort(None, -release_date)[name]",
            ["Last Song", "First Song"],
        ),
        (
            "get_song('first song')[author]\nALL get_person(*)[members]\nALL get_person(*)[birth_place]",
            ["SE"],
        ),
        ("get_grammy_person('the larks')[award_count]", [3]),
        ("ALL get_grammy_person('the larks')[award_date]", [2001, 2003]),
        ("get_grammy_person('ann lee')[award_count]", [0]),
        ("ALL get_grammy_person('ann lee')[award_date]", []),
        ("get_grammy_song('first song')", [2]),
        ("get_grammy_year(2001)[best_song]", ["First Song"]),
        ("get_grammy_year(2003)[best_album]", []),
        ("get_nba_on_date(lakers, yesterday)[GF]", [99]),
        ("ALL get_nba_on_date(lakers, 'last week')[opponent]", ["Chicago Bulls"]),
        ("ALL get_nba_on_date(bulls, 2024)[result]", ["L", "W"]),
        ("get_nba_on_date(None, 2024-02-26)[team]", ["Los Angeles Lakers"]),
        ("get_soccer_on_date('nottingham forest', 'last time')[opponent]", ["Liverpool"]),
        ("get_soccer_last_game(forest)[date]", ["2024-03-02"]),
        ("get_soccer_next_game(forest)[opponent]", ["Arsenal"]),
        ("get_open('florida city')[population]", ["13,085"]),
        ("get_open('florida city')[mayor]\nget_open(*)[birth_place]", ["Homestead"]),
        ("ALL get_open(None)\nsort(gt(population, 20000), name)[name]", ["Orlando"]),
        ("ALL get_open(None)\nsort(neq(population, None), -population)[name][:1]", ["Orlando"]),
        ("get_open('florida city')[elevation]", []),
        ("None", []),
    ],
)
def test_each_call_and_operator(values, program, expected):
    assert values(program) == expected


@pytest.mark.parametrize(
    ("program", "before", "after"),
    [
        (
            "get_movie('not yet out')[title]",
            ("05/31/2024, 10:00:00 PT", []),
            ("06/01/2024, 10:00:00 PT", ["Not Yet Out"]),
        ),
        (f"{CROSSED}[len]", ("05/31/2024, 10:00:00 PT", [2]), ("06/01/2024, 10:00:00 PT", [3])),
        (
            "get_movie_person_oscar(None, None, 2025)[name]",
            ("12/31/2024, 10:00:00 PT", []),
            ("01/01/2025, 10:00:00 PT", ["Later One"]),
        ),
        (
            "get_stock_price(x, today)[close]",
            ("03/05/2024, 12:59:00 PT", [14.0]),
            ("03/05/2024, 13:00:00 PT", [15.0]),
        ),
        (
            "get_stock_price(x, latest)[open]",
            ("03/05/2024, 09:59:59 PT", [14.13]),
            ("03/05/2024, 10:01:00 PT", [77.0]),
        ),
        (
            "get_stock_price(x, 2024-03-06)[close]",
            ("03/06/2024, 12:00:00 PT", [15.0]),
            ("03/06/2024, 13:30:00 PT", [99.0]),
        ),
        ("get_stock_dividend(msft)[len]", ("05/14/2024, 20:00:00 PT", [3]), ("05/14/2024, 21:00:00 PT", [4])),
        (
            "get_song('next song')[author]",
            ("12/31/2024, 23:59:59 PT", []),
            ("01/01/2025, 00:00:00 PT", ["The Larks"]),
        ),
        (
            "get_grammy_person('the larks')",
            ("12/31/2025, 10:00:00 PT", [3]),
            ("01/01/2026, 10:00:00 PT", [4]),
        ),
        (
            "get_nba_on_date(lakers, 2024-03-05)[GF]",
            ("03/05/2024, 20:59:00 PT", []),
            ("03/05/2024, 21:00:00 PT", [130]),
        ),
        (
            "get_soccer_on_date(forest, 2024-03-05)[Captain]",
            ("03/05/2024, 18:45:00 PT", []),
            ("03/05/2024, 18:46:00 PT", ["R. Yates"]),
        ),
        (
            "get_soccer_next_game(forest)[opponent]",
            ("03/05/2024, 18:40:00 PT", ["Arsenal"]),
            ("03/05/2024, 18:50:00 PT", ["Brighton"]),
        ),
    ],
)
def test_nothing_after_the_moment_of_asking_is_seen(values, program, before, after):
    assert values(program, before[0]) == before[1]
    assert values(program, after[0]) == after[1]


@pytest.mark.parametrize(
    ("program", "reason", "says"),
    [
        ("get_movie(", "bad_call", "column 11"),
        ("sort(None, year)", "no_rows", "before it"),
        ("get_movie(None, eq(height, 3))", "unknown_key", "there is no key height; a movie has id, title"),
        ("get_movie(None, eq(year, soon))", "bad_condition", "year is a number, found 'soon'"),
        ("get_movie(None, eq(release_date, soon))", "bad_condition", "a date"),
        ("get_movie_person_oscar(None, None, eq(winner, maybe))", "bad_condition", "true or false"),
        ("get_movie(None)\nsort(None, genres)", "unknown_key", "sort by"),
        ("AVG(get_movie(None)[title])", "bad_mean", "numbers"),
        ("get_stock_price(x, whenever)", "bad_time", "whenever"),
        ("get_grammy_year(soon)", "bad_time", "year"),
        ("get_grammy_year(None)", "bad_time", "year"),
    ],
)
def test_a_line_that_makes_no_sense_has_a_fault_and_the_next_line_runs(ask, program, reason, says):
    results = ask(f"{program}\nget_movie('amelie')[year]")
    fault = results[-2].fault
    assert (fault.reason, fault.transient) == (reason, False)
    assert says in fault.detail
    assert results[-1].values == (2001,)


def test_what_comes_after_a_failed_line_does_not_see_the_line_before_that(ask):
    results = ask("ALL get_movie(None)\nget_nothing(x)\nsort(None, year)[year]\nget_movie(*)")
    assert [r.fault.reason if r.fault else "" for r in results] == ["", "bad_call", "no_rows", ""]
    assert results[-1].values == ()


INJECTIONS = (
    "x'; DROP TABLE movie; --",
    '\\"; DROP TABLE movie; --',
    "' OR 1=1 --",
    "%' OR '1'='1",
    "{fold}",
    "__import__('os')",
    "zzz\\\\",
    "?1",
    ":a",
    "$(whoami)",
)


@pytest.mark.parametrize("text", INJECTIONS)
def test_names_keys_and_values_never_become_sql(ask, text):
    for program in (
        f'get_movie("{text}")[title]',
        f'get_movie(None)["{text}"]',
        f'get_open(None)["{text}"]',
        f'get_movie(None, eq(title, "{text}"))[title]',
        f'get_movie(None, eq("{text}", 1))[title]',
        f'ALL get_open(None)\nsort(eq("{text}", "{text}"), "{text}")["{text}"]',
        f'get_stock_price("x", "{text}")',
    ):
        result = ask(program)[-1]
        assert result.fault is not None or result.values == ()
    assert ask("get_movie(None)[len]")[0].values == (5,)
