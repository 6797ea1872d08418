"""``switch.py HOSTS...``: a network of imitated hosts on this machine. Started by `imitated.py`.

This process is the first of a process namespace, and the switch is a bridge in a network namespace of its own. Every
host is a process with its own network, joined to the switch by a cable (a veth pair), its own hostname, /dev/shm and
/etc/hosts. Everything ends with this process: the kernel kills what runs on the hosts, and the namespaces, with
all that was made or mounted in them, go with their last process. It ends when its standard input is closed.

It prints the process ids of the hosts on one line; then every line of standard input is a command, answered by "ok":
``rate HOST BITS_PER_SECOND`` (0: unlimited) limits the host's cable in both directions, ``cut HOST`` pulls it out,
``join HOST`` plugs it in again.
"""

import subprocess
import sys
import tempfile
from pathlib import Path

from pyroute2 import IPRoute, NetNS

HOST = """
echo "$0" > /proc/sys/kernel/hostname
mount -t tmpfs -o mode=1777 tmpfs /dev/shm
mount --bind "$1" /etc/hosts
echo up
exec sleep infinity
"""
BURST_BYTES = 64 * 1024
LONGEST_QUEUE = "100ms"
NUD_PERMANENT = 0x80
"""state of an entry in a host's table of neighbours that never expires"""
ROOT_HANDLE = 0xFFFFFFFF
"""where a queueing discipline hangs that is the only one of its card"""


def start_host(name: str, names_file: Path) -> subprocess.Popen:
    """A process that is a host: whatever enters its namespaces runs there."""
    host = subprocess.Popen(
        ["unshare", "--net", "--uts", "--mount", "--ipc", "sh", "-e", "-c", HOST, name, names_file],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert host.stdout.readline() == "up\n", f"host {name} could not be set up"
    return host


class Cable:
    """Both ends of the cable between a host and the switch."""

    def __init__(self, switch: IPRoute, bridge: int, number: int, pid: int):
        self.switch, self.port_name = switch, f"port{number}"
        switch.link("add", ifname=self.port_name, kind="veth", peer={"ifname": "eth0", "net_ns_pid": pid})
        self.port = switch.link_lookup(ifname=self.port_name)[0]
        switch.link("set", index=self.port, master=bridge, state="up")
        self.host = NetNS(f"/proc/{pid}/ns/net")
        self.host.link("set", index=self.host.link_lookup(ifname="lo")[0], state="up")
        self.card = self.host.link_lookup(ifname="eth0")[0]
        self.host.addr("add", index=self.card, address=address(number), prefixlen=24)
        self.host.link("set", index=self.card, state="up")
        self.lladdr = self.host.get_links(self.card)[0].get_attr("IFLA_ADDRESS")
        self.limited = False

    def know(self, other_address: str, lladdr: str) -> None:
        """Let the host know another one for good: else, while that is cut off, it gives it up (EHOSTUNREACH), and some
        time beyond. Behind a router a cut is silent."""
        self.host.neigh("add", dst=other_address, lladdr=lladdr, ifindex=self.card, state=NUD_PERMANENT)

    def rate(self, bits_per_second: int) -> None:
        for side, index in ((self.switch, self.port), (self.host, self.card)):
            if self.limited:
                side.tc("del", index=index, parent=ROOT_HANDLE)
            if bits_per_second:
                side.tc("add", "tbf", index, 0, rate=bits_per_second // 8, burst=BURST_BYTES, latency=LONGEST_QUEUE)
        self.limited = bits_per_second > 0

    def set(self, state: str) -> None:
        self.switch.link("set", index=self.port, state=state)


def address(number: int) -> str:
    """IP address of a host."""
    return f"10.99.0.{number + 1}"


def main(names: list[str]) -> None:
    with tempfile.NamedTemporaryFile("w", prefix="hosts-") as names_file:
        names_file.write("127.0.0.1 localhost\n")
        names_file.writelines(f"{address(i)} {name}\n" for i, name in enumerate(names))
        names_file.flush()
        hosts = [start_host(name, names_file.name) for name in names]
    switch = IPRoute()
    switch.link("add", ifname="switch", kind="bridge")
    bridge = switch.link_lookup(ifname="switch")[0]
    switch.link("set", index=bridge, state="up")
    cables = {name: Cable(switch, bridge, i, hosts[i].pid) for i, name in enumerate(names)}
    for cable in cables.values():
        for number, other in enumerate(cables.values()):
            if other is not cable:
                cable.know(address(number), other.lladdr)
    print(*(host.pid for host in hosts), flush=True)
    for line in sys.stdin:
        command, name, *arguments = line.split()
        if command == "rate":
            cables[name].rate(int(arguments[0]))
        else:
            cables[name].set({"cut": "down", "join": "up"}[command])
        print("ok", flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
