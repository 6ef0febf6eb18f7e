"""Documents of the trial: what others wrote, in files as people have them.

Facts as data sheets in HTML and as tables in PDF and docx, man pages, licences, and long descriptions of
packages. All of it comes from the project's environment or from packages of Debian 12.
"""

from __future__ import annotations

import csv
import gzip
import html
import io
import json
import os
import re
import subprocess
import zipfile
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from http import HTTPStatus
from importlib import metadata
from pathlib import Path
from typing import Any
from xml.sax.saxutils import escape

PYTHON = """
    babel==2.18.0 blake3==1.0.11 botocore==1.44.5 deprecation==2.1.0 duckdb==2.0.0 fsspec==2026.9.0
    greenlet==3.5.6 identify==2.6.20 intel-openmp==2024.2.1 moto==5.2.5 networkx==3.6.1 ninja==1.13.2
    pillow==13.0.0 platformdirs==4.14.7 prometheus_client==0.26.0 pybase64==1.5.1 pycountry==26.2.16
    python-multipart==0.0.34 pyzmq==27.3.0 regex==2026.11.15 reportlab==5.1.0 scipy==1.17.1
    sentencepiece==0.2.3 setproctitle==1.3.8 shtab==1.13.0 sortedcontainers==2.4.0 tiktoken==0.14.0
    tqdm==4.70.1 truststore==0.10.5 uvloop==0.23.0 watchfiles==1.3.0
"""
DEBIAN = """
    base-files==12.4+deb12u11 coreutils==9.1-1 distro-info-data==0.58+deb12u6 manpages==6.03-2
    mount==2.38.1-5+deb12u3 netbase==6.4 passwd==1:4.13+dfsg1-1+deb12u1 procps==2:4.0.2-3
    systemd==252.38-1~deb12u1 tzdata==2025b-0+deb12u2 util-linux==2.38.1-5+deb12u3
"""
SHEETS = "pillow prometheus_client regex sentencepiece tqdm"
READMES = """
    blake3 deprecation duckdb fsspec greenlet identify networkx ninja platformdirs pybase64
    python-multipart pyzmq setproctitle shtab sortedcontainers tiktoken truststore uvloop watchfiles
"""
PAGES = """
    chage.1 flock.1 free.1 fstab.5 hostname.5 hosts.5 machine-id.5 mktemp.1 shadow.5 shuf.1 shutdown.8
    tail.1 taskset.1 timeout.1 watch.1
"""
LICENCES = "Apache-2.0 Artistic CC0-1.0 GFDL-1.3 GPL-2 LGPL-3 MPL-2.0"
INSTANCES = "a1.medium c5.4xlarge g4dn.xlarge i3.large r5.xlarge t3.nano x1.16xlarge"
CONSTANTS = (
    "atomic mass constant, Avogadro constant, Bohr magneton, Bohr radius, Boltzmann constant, deuteron mass, "
    "electron mass, electron volt, elementary charge, Faraday constant, fine-structure constant, "
    "first radiation constant, Josephson constant, molar gas constant, muon mass, neutron mass, "
    "Newtonian constant of gravitation, nuclear magneton, Planck constant, proton mass, Rydberg constant, "
    "speed of light in vacuum, standard acceleration of gravity, standard atmosphere, "
    "Stefan-Boltzmann constant"
)
COUNTRIES = "BT EE IS NP PY UY"

Rows = Sequence[tuple[str, ...]]


@dataclass(frozen=True, slots=True)
class Document:
    data: bytes
    lines: list[str]  # what the golds are looked up in: a row of a table is one


def documents() -> dict[str, Document]:
    """Returns the documents by their path, and prints which sources have another version than expected."""
    for names, version in ((PYTHON, _of_python), (DEBIAN, _of_debian)):
        for name, _, expected in (x.partition("==") for x in names.split()):
            if (there := version(name)) != expected:
                print(f"{name}: expected version {expected}, found {there or 'none'}; its golds are checked")
    return dict([*instance_sheets(), *country_sheets(), *package_sheets(), *tables(), *texts()])


def _of_python(name: str) -> str:
    return metadata.version(name)


def _of_debian(name: str) -> str:
    command = ["dpkg-query", "-W", "-f", "${Version}", name]
    return subprocess.run(command, capture_output=True, text=True).stdout


def package_folder(name: str) -> Path:
    return Path(str(metadata.distribution(name).locate_file("")))


def page_of(title: str, rows: Rows) -> Document:
    body = "".join(f"<tr><th>{html.escape(a)}</th><td>{html.escape(b)}</td></tr>" for a, b in rows)
    page = f"<title>{title}</title></head><body><h1>{title}</h1><table>{body}</table></body></html>"
    return Document(
        f'<!doctype html><html><head><meta charset="utf-8">{page}'.encode(), [" | ".join(r) for r in rows]
    )


def instance_sheets() -> Iterable[tuple[str, Document]]:
    with gzip.open(package_folder("moto") / "moto/ec2/resources/instance_types.json.gz") as file:
        of: dict[str, Any] = json.load(file)
    for name in INSTANCES.split():
        a, disks = of[name], of[name].get("InstanceStorageInfo", {}).get("Disks", ())
        rows = [
            ("vCPUs", str(a["VCpuInfo"]["DefaultVCpus"])),
            ("Memory", f"{a['MemoryInfo']['SizeInMiB']} MiB"),
            ("Processor manufacturer", a["ProcessorInfo"]["Manufacturer"]),
            ("Architecture", ", ".join(a["ProcessorInfo"]["SupportedArchitectures"])),
            ("Sustained clock speed", f"{a['ProcessorInfo']['SustainedClockSpeedInGhz']} GHz"),
            ("Hypervisor", a["Hypervisor"]),
            ("Network performance", a["NetworkInfo"]["NetworkPerformance"]),
            ("Network interfaces (maximum)", str(a["NetworkInfo"]["MaximumNetworkInterfaces"])),
            (
                "EBS baseline bandwidth",
                f"{a['EbsInfo']['EbsOptimizedInfo']['BaselineBandwidthInMbps']} Mbps",
            ),
            ("Boot modes", ", ".join(a["SupportedBootModes"])),
        ]
        rows += [("Instance storage", f"{d['Count']} x {d['SizeInGB']} GB {d['Type']}") for d in disks]
        gpus = a.get("GpuInfo", {}).get("Gpus", ())
        rows += [("GPU", f"{g['Count']} x {g['Manufacturer']} {g['Name']}") for g in gpus]
        yield f"sheets/instances/{name}.html", page_of(f"Instance type {name}", rows)


def country_sheets() -> Iterable[tuple[str, Document]]:
    import pycountry
    from babel import Locale
    from babel.languages import get_official_languages
    from babel.numbers import get_currency_name, get_territory_currencies

    lines = Path("/usr/share/zoneinfo/zone.tab").read_text().splitlines()
    zones = [x.split("\t") for x in lines if not x.startswith("#")]
    names = Locale("en")
    for code in COUNTRIES.split():
        country: Any = pycountry.countries.get(alpha_2=code)
        languages = get_official_languages(code)
        day = Locale.parse(f"{languages[0]}_{code}").first_week_day
        rows = [
            ("Official name", str(country.official_name)),
            ("Alpha-3 code", str(country.alpha_3)),
            ("Numeric code", str(country.numeric)),
            (
                "Currency",
                ", ".join(get_currency_name(c, locale="en") for c in get_territory_currencies(code)),
            ),
            ("Official languages", ", ".join(names.languages[x] for x in languages)),
            ("Time zone", ", ".join(z[2] for z in zones if z[0] == code)),
            ("First day of the week", names.days["format"]["wide"][day]),
        ]
        yield f"sheets/countries/{country.name.lower()}.html", page_of(str(country.name), rows)


def package_sheets() -> Iterable[tuple[str, Document]]:
    for name in SHEETS.split():
        about: Any = metadata.metadata(name)
        classes = [c.split(" :: ") for c in about.get_all("Classifier") or ()]
        rows = [
            ("Summary", about["Summary"]),
            ("Version", about["Version"]),
            ("Author", about["Author"] or about["Author-email"] or ""),
            ("License", about["License-Expression"] or about["License"] or ""),
            ("Requires Python", about["Requires-Python"] or ""),
            ("Development status", next((c[1] for c in classes if c[0] == "Development Status"), "")),
            ("Homepage", next((u.split(", ")[1] for u in about.get_all("Project-URL") or ()), "")),
        ]
        yield f"sheets/packages/{name}.html", page_of(name, [r for r in rows if r[1]])


def as_docx(title: str, rows: Rows) -> bytes:
    space = "http://schemas.openxmlformats.org/wordprocessingml/2006/main"

    def paragraph(text: str) -> str:
        return f'<w:p><w:r><w:t xml:space="preserve">{escape(text)}</w:t></w:r></w:p>'

    cells = ("".join(f"<w:tc>{paragraph(c)}</w:tc>" for c in row) for row in rows)
    table = f"<w:tbl>{''.join(f'<w:tr>{row}</w:tr>' for row in cells)}</w:tbl>"
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
        body = f"<w:body>{paragraph(title)}{table}</w:body>"
        archive.writestr("word/document.xml", f'<w:document xmlns:w="{space}">{body}</w:document>')
    return file.getvalue()


def as_pdf(title: str, rows: Rows) -> bytes:
    from reportlab.lib.styles import getSampleStyleSheet
    from reportlab.platypus import Paragraph, SimpleDocTemplate, Table

    file = io.BytesIO()
    parts = [Paragraph(title, getSampleStyleSheet()["Title"]), Table([list(r) for r in rows], repeatRows=1)]
    SimpleDocTemplate(file, invariant=1).build(parts)
    return file.getvalue()


def tables() -> Iterable[tuple[str, Document]]:
    import pycountry
    from reportlab.lib import pagesizes
    from scipy import constants

    def releases(of: str) -> Rows:
        names = {
            "version": "Version",
            "codename": "Codename",
            "created": "Created",
            "release": "Release",
            "eol": "End of life",
            "eol-lts": "End of long-term support",
        }
        with open(f"/usr/share/distro-info/{of}.csv") as file:
            listed = list(csv.DictReader(file))[-20:]
        return [tuple(names.values()), *(tuple(r.get(n) or "" for n in names) for r in listed)]

    services = re.findall(r"(?m)^(\S+)[ \t]+(\d+/\w+)[ \t]*([^#\n]*)", Path("/etc/services").read_text())
    codes = json.loads((package_folder("botocore") / "botocore/data/endpoints.json").read_text())
    about = {n: constants.physical_constants[n] for n in CONSTANTS.split(", ")}
    papers = {n: p for n, p in vars(pagesizes).items() if n.isupper() and isinstance(p, tuple)}
    made: dict[str, tuple[str, Rows]] = {
        "debian-releases.pdf": ("Debian releases", releases("debian")),
        "ubuntu-releases.docx": ("Ubuntu releases", releases("ubuntu")),
        "constants.pdf": (
            "CODATA constants",
            [
                ("Quantity", "Value", "Unit", "Uncertainty"),
                *((n, str(v), u, str(e)) for n, (v, u, e) in about.items()),
            ],
        ),
        "services.pdf": (
            "Network services",
            [("Service", "Port", "Aliases"), *((n, p, a.strip()) for n, p, a in services[:120])],
        ),
        "http-statuses.docx": (
            "HTTP status codes",
            [
                ("Code", "Phrase", "Description"),
                *((str(s.value), s.phrase, s.description) for s in HTTPStatus),
            ],
        ),
        "paper.docx": (
            "Paper formats",
            [
                ("Format", "Width", "Height"),
                *((n, *(f"{x / 72 * 25.4:.0f} mm" for x in p)) for n, p in papers.items()),
            ],
        ),
        "regions.pdf": (
            "Regions",
            [
                ("Region", "Location"),
                *((r, a["description"]) for r, a in codes["partitions"][0]["regions"].items()),
            ],
        ),
        "currencies.docx": (
            "Currencies",
            [
                ("Code", "Currency", "Number"),
                *((c.alpha_3, c.name, c.numeric) for c in map(_any, pycountry.currencies)),
            ],
        ),
    }
    for name, (title, rows) in made.items():
        make: Callable[[str, Rows], bytes] = as_pdf if name.endswith("pdf") else as_docx
        yield f"tables/{name}", Document(make(title, rows), [" | ".join(r) for r in rows])


def _any(x: Any) -> Any:
    return x


def texts() -> Iterable[tuple[str, Document]]:
    """Man pages, licences and READMEs."""
    for page in PAGES.split():
        yield f"man/{page}.txt", plain(man_page(page))
    openmp = metadata.distribution("intel-openmp")
    eula = next(f for f in openmp.files or () if f.name == "LICENSE.txt")
    yield "licences/Intel-EULA.txt", plain(Path(str(openmp.locate_file(eula))).read_text())
    yield "licences/base-files-FAQ.txt", plain(Path("/usr/share/doc/base-files/FAQ").read_text())
    for name in LICENCES.split():
        yield f"licences/{name}.txt", plain(Path("/usr/share/common-licenses", name).read_text())
    for name in READMES.split():
        about: Any = metadata.metadata(name)
        kind = "md" if "markdown" in (about["Description-Content-Type"] or "") else "rst"
        yield f"readmes/{name}.{kind}", plain(readme(name))


def man_page(page: str) -> str:
    """Returns a man page, NAME.SECTION, as a terminal of 80 columns shows it."""
    name, _, section = page.rpartition(".")
    command = ["man", "--no-hyphenation", "--no-justification", "-P", "cat", section, name]
    env = {**os.environ, "MANWIDTH": "80", "LC_ALL": "C.UTF-8"}
    shown = subprocess.run(command, capture_output=True, text=True, env=env).stdout
    return re.sub(r".\x08|\x1b\[[0-9;]*m", "", shown)


def readme(package: str) -> str:
    about: Any = metadata.metadata(package)
    return str(about.get_payload() or about["Description"])


def plain(text: str) -> Document:
    return Document(text.encode(), [text])
