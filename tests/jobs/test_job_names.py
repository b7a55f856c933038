# SPDX-License-Identifier: GPL-3.0-or-later
"""What a job's name stands for: where its record lies, and what is found from another folder."""

from __future__ import annotations

import pytest

import forkless

# Load, start, save: the plain pattern, or with the two lines that find a job on its host.
BOOK = """
- hosts: localhost
  gather_facts: false
  vars: {{ansible_python_interpreter: "{{{{ ansible_playbook_python }}}}"}}
  tasks:
    - include_role: {{name: forkless.core.async_job_load}}
      vars: {{async_job_load_job_name: same, async_job_load_claim: {claim}}}
    - command: "true"
      async: 600
      poll: 0
      register: started
      vars: {{ansible_async_dir: "{folder}"}}
      when: not async_job_load_found
    - include_role: {{name: forkless.core.async_job_save}}
      vars: {{async_job_save_job_name: same, async_job_save_ansible_job_id: "{{{{ started.ansible_job_id }}}}"}}
      when: started.ansible_job_id is defined
    - debug: {{msg: "found: {{{{ async_job_load_found }}}}"}}
"""


@pytest.mark.spawns
@pytest.mark.parametrize("claim", [False, True])
def test_the_same_name_in_another_folder_is_the_same_job_only_if_it_is_found_on_its_host(tmp_path, claim):
    plain = tmp_path / "async"
    book = tmp_path / "books" / "play.yml"
    book.parent.mkdir()
    book.write_text(BOOK.format(claim=claim, folder="{{ async_job_load_async_dir }}" if claim else plain))

    def found(name):
        folder = tmp_path / name
        folder.mkdir(exist_ok=True)
        result = forkless.run(book, engine="threads", cwd=folder, env={"ANSIBLE_ASYNC_DIR": str(plain)})
        assert result.ok, result.stdout
        # In the folder that the run was started in, and not beside the playbook.
        assert (folder / ".ansible_async_state/localhost/same.json").exists()
        return "found: True" in result.stdout

    assert [found("one"), found("two")] == [False, claim]
    assert [path.name for path in book.parent.iterdir()] == ["play.yml"]
