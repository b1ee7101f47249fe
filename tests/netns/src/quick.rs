//! Other programs for an interface: wg-quick(8) with linerate, and resolvconf(8).

use crate::host::Host;
use crate::implementation::{Implementation, peers};
use crate::wg::Key;

/// The command line for wg-quick with linerate. wg-quick would use the kernel's WireGuard if
/// available. So an unmodified copy runs next to an `ip` that cannot create such links, with an
/// empty /sys/module. (wg-quick searches its own folder for programs first.)
pub fn wg_quick(host: &Host) -> String {
    host.wrap_program("ip", "case \" $* \" in *' type wireguard '*) exit 2;; esac");
    host.run("cp \"$(command -v wg-quick)\" /run/rig/bin/wg-quick");
    host.run("mount -t tmpfs tmpfs /sys/module || true");
    let program = Implementation::Linerate.path();
    let program = program.display();
    format!("env WG_QUICK_USERSPACE_IMPLEMENTATION={program} /run/rig/bin/wg-quick")
}

/// The same with the order of wg-quick 1.0.20260223 if the installed one is older: PreUp runs after
/// the interface is created, and its settings remain.
pub fn newer_wg_quick(host: &Host) -> String {
    let quick = wg_quick(host);
    host.run(
        "sed -i -e '/^\\texecute_hooks \"${PRE_UP\\[@\\]}\"$/d' \
         -e 's/^\\tadd_if$/&\\n\\texecute_hooks \"${PRE_UP[@]}\"/' \
         -e 's/cmd wg setconf/cmd wg addconf/' /run/rig/bin/wg-quick",
    );
    quick
}

/// Writes `wg0.conf` for wg-quick or `linerate up` on a host with the inner addresses 10.9.0.1 and
/// fd09::1: `lines` in `[Interface]`, and a peer with `peer_lines`. Returns its path.
pub fn conf(host: &Host, key: &Key, peer: &Key, lines: &str, peer_lines: &str) -> String {
    let text = format!(
        "[Interface]\nPrivateKey = {}\nAddress = 10.9.0.1/24, fd09::1/64\n{lines}\n\
         [Peer]\nPublicKey = {}\n{peer_lines}\n",
        key.private, peer.public
    );
    host.write_secret("wg0.conf", &text)
}

/// Gives a host openresolv's resolvconf(8), first in the PATH of wg-quick and of linerate, with one
/// name server of `eth0`. Its files are private to the host.
///
/// Returns whether `make peers` has installed it; otherwise the test is skipped.
pub fn openresolv(host: &Host, server: &str) -> bool {
    let folder = peers().join("../openresolv");
    if !folder.is_dir() {
        skips::skip("openresolv");
        return false;
    }
    host.run(format!("mkdir -p /run/rig/resolvconf/etc && cp -r {}/* /run/rig/", folder.display()));
    host.write("resolvconf/etc/resolvconf.conf", "resolv_conf=/run/rig/resolv.conf\n");
    host.run(
        "mv /run/rig/sbin/resolvconf /run/rig/bin/ && \
         sed -i -e 's,^SYSCONFDIR=.*,SYSCONFDIR=/run/rig/resolvconf/etc,' \
             -e 's,/lib/resolvconf,/run/rig/lib/resolvconf,' \
             -e 's,/sbin/resolvconf,/run/rig/bin/resolvconf,' \
             /run/rig/bin/resolvconf $(find /run/rig/lib/resolvconf -type f)",
    );
    host.run(format!("echo nameserver {server} | /run/rig/bin/resolvconf -a eth0"));
    true
}
