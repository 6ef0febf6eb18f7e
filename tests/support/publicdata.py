"""Public data as they are published, a row or two of each, and the tables that the command makes of them."""

from pathlib import Path

from raypipe.api.cli.main import main

CSVS = {
    "oscar": (
        "year_film,year_ceremony,ceremony,category,name,film,winner\n"
        "2011,2012,84,ACTOR IN A LEADING ROLE,Demián Bichir,A Better Life,False\n"
        "2011,2012,84,ACTOR IN A LEADING ROLE,Jean Dujardin,The Artist,True\n"
        "2018,2019,91,DIRECTING,Alfonso Cuarón,Roma,True\n"
    ),
    "grammy": (
        "year,title,published_at,updated_at,category,nominee,artist,workers,img,winner\n"
        "2012,54th Annual GRAMMY Awards  (2011),2017-11-28T00:03:45-08:00,2017-11-28T00:03:45-08:00,"
        'Song Of The Year,Rolling In The Deep,,"Adele Adkins & Paul Epworth, songwriters (Adele)",,True\n'
    ),
    "stocks": (
        "Symbol,Name,Last Sale,Market Cap,EPS,PE Ratio\n"
        "TRNH,Tarn Holdings Inc. Common Stock,$41.2,4120000000,2.06,20\n"
    ),
    "movielens": (
        "adult,budget,genres,id,original_title,overview,release_date,runtime,title\n"
        "False,30000000,\"[{'id': 16, 'name': 'Animation'}]\",862,Toy Story,Toys.,1995-10-30,81.0,Toy Story\n"
        'False,90000000,"[]",863,Toy Story 2,More toys.,1999-10-30,92.0,Toy Story 2\n'
    ),
}
CREDITS = (
    "cast,crew,id\n"
    "\"[{'character': 'Woody', 'name': 'Tom Hanks'}]\",\"[{'job': 'Director', 'name': 'J. Lasseter'}]\",862\n"
)


def tables(folder: Path, *options: str) -> dict[str, str]:
    """Builds all of them in a folder, by the command. Kind -> its file."""
    for kind, text in CSVS.items():
        (folder / f"{kind}.csv").write_text(text)
        more = ["--credits", str(folder / "credits.csv")] if kind == "movielens" else []
        (folder / "credits.csv").write_text(CREDITS)
        out = str(folder / f"{kind}.parquet")
        words = ["facts", "build", str(folder / f"{kind}.csv"), "--source", kind, "--out", out]
        assert main([*words, *more, *options]) == 0
    return {kind: str(folder / f"{kind}.parquet") for kind in CSVS}
