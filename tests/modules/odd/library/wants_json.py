#!/usr/bin/python
# SPDX-License-Identifier: GPL-3.0-or-later
# WANT_JSON
import json
import sys

with open(sys.argv[1]) as file:
    print(json.dumps({"changed": False, "given": json.load(file)["a"]}))
