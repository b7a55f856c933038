# SPDX-License-Identifier: GPL-3.0-or-later
# GNU General Public License v3.0+ (see https://www.gnu.org/licenses/gpl-3.0.txt)
from __future__ import annotations

DOCUMENTATION = """
    name: ssh
    short_description: connect by SSH without an ssh program
    version_added: 0.1.0
    author: The forkless maintainers (@forkless)
    description:
        - Speaks SSH in the process that runs the play. It needs no ssh, sftp or scp program and starts none, so it works where
          nothing may be started.
        - Options, variables and settings have the names that they have in the builtin ssh plugin; an inventory needs only
          C(ansible_connection=forkless.core.ssh).
        - On forkless one connection to each host is kept open and shared by all tasks of a run. On ansible-playbook each task
          opens its own.
    requirements:
        - asyncssh (Python package)
        - forkless (Python package)
    notes:
        - C(~/.ssh/config) and C(/etc/ssh/ssh_config) are read (Host, Match without exec, Include, HostName, User, Port, IdentityFile,
          CertificateFile, IdentitiesOnly, IdentityAgent, ProxyJump, UserKnownHostsFile, GlobalKnownHostsFile, HostKeyAlias,
          StrictHostKeyChecking, ConnectTimeout, ServerAliveInterval, ServerAliveCountMax, Compression, ForwardAgent, Ciphers, MACs,
          KexAlgorithms, HostKeyAlgorithms, AddressFamily, BindAddress, PreferredAuthentications).
        - A C(ProxyCommand) of the form C(ssh -W %h:%p bastion) is taken as a jump. Any other would need a program, and is refused.
        - A command is never sent twice. Only what surely has not started is tried again.
    extends_documentation_fragment:
        - connection_pipelining
    options:
      host:
          description: Name or address of the host.
          default: inventory_hostname
          type: string
          vars:
              - name: inventory_hostname
              - name: ansible_host
              - name: ansible_ssh_host
      port:
          description: Port of the host.
          type: int
          ini:
            - section: defaults
              key: remote_port
          env:
            - name: ANSIBLE_REMOTE_PORT
          vars:
            - name: ansible_port
            - name: ansible_ssh_port
          keyword:
            - name: port
      remote_user:
          description: User to log in as. Without one, what the ssh configuration says, else the user who runs the play.
          type: string
          ini:
            - section: defaults
              key: remote_user
          env:
            - name: ANSIBLE_REMOTE_USER
          vars:
            - name: ansible_user
            - name: ansible_ssh_user
          cli:
            - name: user
          keyword:
            - name: remote_user
      password:
          description: Password of the user.
          type: string
          secret: true
          vars:
              - name: ansible_password
              - name: ansible_ssh_pass
              - name: ansible_ssh_password
      private_key_file:
          description: Path of a private key.
          type: string
          ini:
            - section: defaults
              key: private_key_file
          env:
            - name: ANSIBLE_PRIVATE_KEY_FILE
          vars:
            - name: ansible_private_key_file
            - name: ansible_ssh_private_key_file
          cli:
            - name: private_key_file
              option: '--private-key'
      private_key:
          description: A private key itself, for instance from a vault. It is never written to a file.
          type: string
          secret: true
          env:
            - name: ANSIBLE_PRIVATE_KEY
          vars:
            - name: ansible_private_key
            - name: ansible_ssh_private_key
      private_key_passphrase:
          description: Passphrase of O(private_key) or of O(private_key_file).
          type: string
          secret: true
          env:
            - name: ANSIBLE_PRIVATE_KEY_PASSPHRASE
          vars:
            - name: ansible_private_key_passphrase
            - name: ansible_ssh_private_key_passphrase
      host_key_checking:
          description:
            - Whether a host whose key is not known is refused. A key that B(changed) is refused too.
            - When false, any key is taken; a host whose key has changed still gets no password.
          default: true
          type: boolean
          ini:
              - section: defaults
                key: host_key_checking
              - section: ssh_connection
                key: host_key_checking
          env:
              - name: ANSIBLE_HOST_KEY_CHECKING
              - name: ANSIBLE_SSH_HOST_KEY_CHECKING
          vars:
              - name: ansible_host_key_checking
              - name: ansible_ssh_host_key_checking
      ssh_args:
          description: Arguments in the form that the ssh command takes. Those about its control socket mean nothing here.
          default: ''
          type: string
          ini:
              - section: ssh_connection
                key: ssh_args
          env:
              - name: ANSIBLE_SSH_ARGS
          vars:
              - name: ansible_ssh_args
      ssh_common_args:
          description: More such arguments.
          default: ''
          type: string
          ini:
              - section: ssh_connection
                key: ssh_common_args
          env:
              - name: ANSIBLE_SSH_COMMON_ARGS
          vars:
              - name: ansible_ssh_common_args
          cli:
              - name: ssh_common_args
      ssh_extra_args:
          description: More such arguments.
          default: ''
          type: string
          ini:
            - section: ssh_connection
              key: ssh_extra_args
          env:
            - name: ANSIBLE_SSH_EXTRA_ARGS
          vars:
              - name: ansible_ssh_extra_args
          cli:
            - name: ssh_extra_args
      ssh_transfer_method:
          description: How files travel.
          choices:
              sftp: By SFTP.
              scp: By the old scp protocol.
              piped: Through a plain C(cat) on the host.
              smart: By SFTP, and piped where the host has none.
          default: smart
          type: string
          ini:
            - section: ssh_connection
              key: transfer_method
          env:
            - name: ANSIBLE_SSH_TRANSFER_METHOD
          vars:
            - name: ansible_ssh_transfer_method
      use_tty:
          description: Whether a command that may escalate and gets no input runs on a terminal.
          default: true
          type: bool
          ini:
            - section: ssh_connection
              key: usetty
          env:
            - name: ANSIBLE_SSH_USETTY
          vars:
            - name: ansible_ssh_use_tty
      reconnection_retries:
          description: How many more times to try when the host cannot be reached.
          default: 0
          type: integer
          ini:
            - section: connection
              key: retries
            - section: ssh_connection
              key: retries
          env:
            - name: ANSIBLE_SSH_RETRIES
          vars:
            - name: ansible_ssh_retries
      timeout:
          description: Seconds to wait for the connection, and for an answer from become.
          default: 10
          type: integer
          ini:
            - section: defaults
              key: timeout
            - section: ssh_connection
              key: timeout
          env:
            - name: ANSIBLE_TIMEOUT
            - name: ANSIBLE_SSH_TIMEOUT
          vars:
            - name: ansible_ssh_timeout
          cli:
            - name: timeout
      pipelining:
          ini:
            - section: defaults
              key: pipelining
            - section: connection
              key: pipelining
            - section: ssh_connection
              key: pipelining
          env:
            - name: ANSIBLE_PIPELINING
            - name: ANSIBLE_SSH_PIPELINING
          vars:
            - name: ansible_pipelining
            - name: ansible_ssh_pipelining
"""

import contextlib
import os

from ansible.errors import AnsibleAuthenticationFailure, AnsibleConnectionFailure, AnsibleError, AnsibleFileNotFound
from ansible.module_utils.common.text.converters import to_bytes, to_native, to_text
from ansible.plugins.connection import ConnectionBase
from ansible.utils.display import Display

try:
    from forkless import SpecError, UnsupportedError, ssh
except ImportError as err:
    ssh, MISSING = None, err
else:
    MISSING = None

display = Display()


@contextlib.contextmanager
def as_ansible_says_it():
    """The transport's errors, as the ones that Ansible sorts into unreachable and failed."""
    try:
        yield
    except ssh.LoginError as err:
        raise AnsibleAuthenticationFailure(to_native(err)) from err
    except ssh.SSHError as err:
        raise AnsibleConnectionFailure(to_native(err)) from err
    except (ssh.EscalationError, SpecError, UnsupportedError) as err:
        raise AnsibleError(to_native(err)) from err


class Connection(ConnectionBase):
    transport = "forkless.core.ssh"
    has_pipelining = True
    # A become plugin that wants a terminal gets one.
    has_tty = True
    # For forkless itself: is called with what a command prints while it runs.
    tell_output = None

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        if MISSING is not None:
            raise AnsibleError(
                f"forkless.core.ssh needs the Python package forkless beside ansible-core ({MISSING}); "
                "install it with: pip install 'forkless[ssh]'"
            )
        self._link = None

    @property
    def _ssh_options(self):
        option = self.get_option
        return ssh.SshOptions(
            host=option("host") or self._play_context.remote_addr,
            port=option("port"),
            user=option("remote_user"),
            password=option("password") or self._play_context.password or None,
            key_file=option("private_key_file"),
            key=option("private_key"),
            passphrase=option("private_key_passphrase"),
            check_host_keys=option("host_key_checking"),
            timeout=option("timeout"),
            ssh_args=option("ssh_args") or "",
            common_args=option("ssh_common_args") or "",
            extra_args=option("ssh_extra_args") or "",
            environ=dict(os.environ),  # the event loop's thread reads it, and belongs to no run
        )

    @property
    def _attempts(self):
        return int(self.get_option("reconnection_retries") or 0) + 1

    def _hold(self):
        """The link to the host, taken at first use: options are not yet set when the plugin is made."""
        if self._link is None:
            settings = self._ssh_options.settings()
            for note in settings.notes:
                display.vvv(note, host=settings.name)
            self._link = ssh.Link(settings)
        return self._link

    def _connect(self):
        if not self._connected:
            with as_ansible_says_it():
                link = self._hold()
                display.vvv(
                    f"ESTABLISH SSH CONNECTION (no program) TO {link.settings.address}", host=link.settings.name
                )
                link.connect(self._attempts)
            self._connected = True
        return self

    def exec_command(self, cmd, in_data=None, sudoable=True):
        super().exec_command(cmd, in_data=in_data, sudoable=sudoable)
        with as_ansible_says_it():
            link = self._hold()
            become = self.become if sudoable else None
            prompt = bool(getattr(become, "prompt", None))
            password = become.get_option("become_pass", playcontext=self._play_context) if prompt else None
            display.vvv(f"SSH: EXEC {to_text(cmd)}", host=link.settings.name)
            done = link.execute(
                to_text(cmd, errors="surrogate_or_strict"),
                input_=to_bytes(in_data, nonstring="passthru") if in_data else None,
                become=become,
                expects_prompt=prompt,
                password=None if password is None else to_bytes(password, errors="surrogate_or_strict"),
                # As in the builtin plugin: a terminal corrupts the input that pipelining sends, so only one of the two is used.
                tty=bool(sudoable and not in_data and self.get_option("use_tty")),
                attempts=self._attempts,
                tell=self.tell_output,
            )
        return done.rc, done.stdout, done.stderr

    def open_stream(self, cmd, text, become, feed, gone, idle):
        """For forkless itself: a program on the host that stays for the run. Not part of Ansible's contract."""
        with as_ansible_says_it():
            prompt = bool(getattr(become, "prompt", None))
            password = become.get_option("become_pass", playcontext=self._play_context) if prompt else None
            return self._hold().stream(
                to_text(cmd, errors="surrogate_or_strict"),
                input_=text,
                become=become,
                expects_prompt=prompt,
                password=None if password is None else to_bytes(password, errors="surrogate_or_strict"),
                feed=feed,
                gone=gone,
                idle=idle,
                attempts=self._attempts,
            )

    @property
    def settings(self):
        """The host and the user of the connection: equal for all tasks that share a connection."""
        with as_ansible_says_it():
            return self._hold().settings

    def put_file(self, in_path, out_path):
        super().put_file(in_path, out_path)
        if not os.path.exists(to_bytes(in_path, errors="surrogate_or_strict")):
            raise AnsibleFileNotFound(f"file or module does not exist: {to_native(in_path)}")
        self._transfer("PUT", "put", in_path, out_path)

    def fetch_file(self, in_path, out_path):
        super().fetch_file(in_path, out_path)
        self._transfer("FETCH", "fetch", in_path, out_path)

    def _transfer(self, word, what, source, target):
        with as_ansible_says_it():
            link = self._hold()
            display.vvv(f"{word} {to_text(source)} TO {to_text(target)}", host=link.settings.name)
            try:
                getattr(link, what)(
                    to_text(source, errors="surrogate_or_strict"),
                    to_text(target, errors="surrogate_or_strict"),
                    method=self.get_option("ssh_transfer_method"),
                    attempts=self._attempts,
                )
            except OSError as err:
                if isinstance(err, ssh.SSHError):
                    raise
                raise AnsibleError(
                    f"failed to transfer file {to_native(source)} to {to_native(target)}: {err}"
                ) from err

    def is_pipelining_enabled(self, wrap_async=False):
        """A terminal that was asked for by name (-tt) and the input of a pipelined module do not go together."""
        return not self._ssh_options.tty and super().is_pipelining_enabled(wrap_async)

    def reset(self):
        with as_ansible_says_it():
            self._hold().reset()
        self._link = None
        self._connected = False

    def close(self):
        if self._link is not None:
            self._link.close()
            self._link = None
        self._connected = False
