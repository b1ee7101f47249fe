//! Drops of the kernel, in a device's queue or a socket's buffer.

use std::fs;

use crate::host::Host;

impl Host {
    /// Packets that a device did not accept for sending. For a TUN interface, the ring of its
    /// daemon was full.
    pub fn dropped_by_device(&self, device: &str) -> u64 {
        let text = fs::read_to_string(self.proc_net("dev")).unwrap_or_default();
        let line =
            text.lines().find_map(|line| line.trim().strip_prefix(device)?.strip_prefix(':'));
        // Eight fields of receiving, then bytes, packets, errors and drops of sending.
        line.and_then(|line| line.split_whitespace().nth(11)?.parse().ok()).unwrap_or(0)
    }

    /// Datagrams dropped because the buffer of a UDP port's sockets was full, of either family;
    /// `None` without a socket. A super-packet of an offload counts as its segments, unless the
    /// socket receives it whole.
    pub fn dropped_by_socket(&self, port: u16) -> Option<u64> {
        let rows = ["udp", "udp6"].map(|table| self.udp_rows(table, port));
        rows.into_iter().flatten().reduce(|a, b| a + b)
    }

    /// One of the kernel's counters of UDP, of both families (`/proc/net/snmp` and `snmp6`):
    /// `RcvbufErrors`, ...
    pub fn udp_count(&self, counter: &str) -> u64 {
        let text = fs::read_to_string(self.proc_net("snmp")).unwrap_or_default();
        let mut lines = text.lines().filter_map(|line| line.strip_prefix("Udp: "));
        let (names, values) = (lines.next().unwrap_or_default(), lines.next().unwrap_or_default());
        let at = names.split_whitespace().position(|name| name == counter);
        let v4 = at.and_then(|at| values.split_whitespace().nth(at)?.parse().ok()).unwrap_or(0);
        let text = fs::read_to_string(self.proc_net("snmp6")).unwrap_or_default();
        let mut lines =
            text.lines().filter_map(|line| line.strip_prefix("Udp6")?.strip_prefix(counter));
        let v6: u64 = lines.next().and_then(|value| value.trim().parse().ok()).unwrap_or(0);
        v4 + v6
    }

    /// The drops of each socket of the port in a table of proc_net(5).
    fn udp_rows(&self, table: &str, port: u16) -> Vec<u64> {
        let text = fs::read_to_string(self.proc_net(table)).unwrap_or_default();
        let wanted = format!(":{port:04X}");
        let drops = |line: &str| {
            let mut fields = line.split_whitespace();
            fields.nth(1).filter(|local| local.ends_with(&wanted))?;
            fields.last()?.parse().ok()
        };
        text.lines().skip(1).filter_map(drops).collect()
    }

    fn proc_net(&self, file: &str) -> String {
        // Not /proc/self: this process is not in the host's /proc.
        format!("/proc/{}/net/{file}", self.pid())
    }
}
