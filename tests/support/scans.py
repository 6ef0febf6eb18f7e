"""Pictures of pages, as scanners make them: turned, askew, noisy; as images, and as PDFs of images."""

import io

from PIL import Image, ImageDraw, ImageFont

LINES = [
    "Lease of the boat house",
    "The boat house in Alder Lane is let to the rowing club",
    "from 1 March 2019 for a rent of 1,450 euros a month.",
    ["Model", "Weight", "Price"],
    ["IM-60", "17.2 kg", "1,250.00"],
    ["IM-90", "24.8 kg", "2,400.50"],
]


def picture(lines=LINES, turned=0, askew=0, noise=0.0, size=(1000, 620)):
    """An image of lines; one that is a list has its parts in columns. `turned` and `askew` in degrees;
    `noise`: its share."""
    font = ImageFont.load_default(26)
    image = Image.new("L", size, 255)
    draw = ImageDraw.Draw(image)
    for n, line in enumerate(lines):
        for column, part in enumerate(line if isinstance(line, list) else [line]):
            draw.text((90 + 300 * column, 90 + 44 * n), part, fill=0, font=font)
    if askew:
        image = image.rotate(askew, fillcolor=255, resample=Image.Resampling.BICUBIC)
    if noise:
        image = Image.blend(image, Image.effect_noise(size, 120), noise)
    return image.rotate(turned, expand=True)


def image_file(kind, images):
    """The bytes of an image file of this kind (PNG, JPEG, TIFF, PDF); the last two hold several images."""
    out = io.BytesIO()
    more = {"save_all": True, "append_images": images[1:]} if kind in ("TIFF", "PDF") else {}
    images[0].save(out, kind, **more, **({"resolution": 120} if kind == "PDF" else {}))
    return out.getvalue()


def mixed_pdf(image, text="This page has been typed, and its words need no recognition at all."):
    """A PDF of a page of text, a page that is a picture, and an empty page that was scanned."""
    from reportlab.lib.utils import ImageReader
    from reportlab.pdfgen.canvas import Canvas

    out = io.BytesIO()
    canvas = Canvas(out)
    canvas.drawString(72, 700, text)
    for shown in (image, Image.new("L", (400, 560), 250)):
        canvas.showPage()
        canvas.drawImage(ImageReader(shown), 0, 0, 595, 842)
    canvas.save()
    return out.getvalue()


def huge_png(side=20_000):
    """An image of 400 million pixels in 50 kB."""
    out = io.BytesIO()
    Image.new("1", (side, side), 1).save(out, "PNG")
    return out.getvalue()
