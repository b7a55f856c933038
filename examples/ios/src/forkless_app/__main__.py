# SPDX-License-Identifier: GPL-3.0-or-later
from forkless_app.app import main

if __name__ == "__main__":
    main().main_loop()
