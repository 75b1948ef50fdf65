"""`python -m tests.gallery`: makes the pictures anew."""

import asyncio
import json
import sys

from tests.gallery.pictures import (
    FONTS,
    THEMES,
    fonts,
    open_browser,
    open_gallery,
    picture_of,
    take,
)


async def main() -> None:
    async with open_browser() as browser:
        for theme in THEMES:
            async with open_gallery(browser, theme) as page:
                path = picture_of(theme)
                path.write_bytes(await take(page))
                FONTS.parent.mkdir(parents=True, exist_ok=True)
                FONTS.write_text(f"{json.dumps(await fonts(page))}\n")
            sys.stdout.write(f"{path}: {path.stat().st_size // 1000} kB\n")


if __name__ == "__main__":
    asyncio.run(main())
