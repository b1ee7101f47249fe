//! Kernel settings below `/proc/sys`. In a container they are often read-only. That is not an
//! error: most hosts do not need another value, and for the others a warning is logged.

use std::{
    fmt, fs, io,
    path::{Path, PathBuf},
};

const IPV4_DEVICES: &str = "/proc/sys/net/ipv4/conf";
/// Whether the check of a packet's source (`rp_filter`) uses the packet's mark.
const SRC_VALID_MARK: &str = "/proc/sys/net/ipv4/conf/all/src_valid_mark";
/// The value of `rp_filter` that drops a packet if the reply would leave by another interface.
const STRICT: u32 = 1;

/// A setting that could not be written.
#[derive(Debug)]
pub struct UnwrittenSetting {
    pub path: PathBuf,
    /// The value that the kernel did not accept.
    pub value: &'static str,
    pub error: io::Error,
}

/// Displays the keys, the first error, and the arguments that set the values in a container.
pub(crate) struct UnwrittenList<'a>(pub &'a [UnwrittenSetting]);

impl fmt::Display for UnwrittenList<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Some(first) = self.0.first() else { return Ok(()) };
        for (number, one) in self.0.iter().enumerate() {
            let comma = if number == 0 { "" } else { ", " };
            write!(f, "{comma}{} is not {}", key(&one.path), one.value)?;
        }
        write!(f, " and cannot be set here ({}); start a container with", first.error)?;
        self.0.iter().try_for_each(|one| write!(f, " --sysctl {}={}", key(&one.path), one.value))
    }
}

/// The name of a setting for sysctl(8), in which a dot of a device's name is a slash.
fn key(path: &Path) -> String {
    let below = path.strip_prefix("/proc/sys").unwrap_or(path);
    let parts = below.iter().map(|part| part.to_string_lossy().replace('.', "/"));
    parts.collect::<Vec<_>>().join(".")
}

/// Makes the source check of IPv4 packets use their marks. Otherwise an interface with a strict
/// reverse path filter drops the datagrams of peers. `tunnel` is the name of our interface.
pub(crate) fn set_src_valid_mark(tunnel: &str) {
    let path = Path::new(SRC_VALID_MARK);
    if !fs::read_to_string(path).is_ok_and(|value| value.trim() == "0") {
        return;
    }
    let Err(error) = fs::write(path, "1") else { return };
    let strict = strict_devices(Path::new(IPV4_DEVICES), tunnel);
    if !strict.is_empty() {
        let unwritten = [UnwrittenSetting { path: path.to_owned(), value: "1", error }];
        tracing::warn!(
            "{} drops datagrams of peers because its rp_filter is {STRICT}: {}",
            strict.join(", "),
            UnwrittenList(&unwritten)
        );
    }
}

/// The devices with a strict reverse path filter that ignores marks. The kernel uses the larger
/// `rp_filter` of the device and `all`; `src_valid_mark` is on if it is 1 for one of them
/// (include/linux/inetdevice.h, `IN_DEV_RPFILTER` and `IN_DEV_SRC_VMARK`).
fn strict_devices(folder: &Path, tunnel: &str) -> Vec<String> {
    let number = |device: &str, key: &str| -> Option<u32> {
        fs::read_to_string(folder.join(device).join(key)).ok()?.trim().parse().ok()
    };
    let all = number("all", "rp_filter").unwrap_or(0);
    let devices = fs::read_dir(folder).into_iter().flatten().flatten();
    let names = devices.filter_map(|device| device.file_name().into_string().ok());
    let mut strict: Vec<String> = names
        .filter(|name| !["all", "default", "lo", tunnel].contains(&&**name))
        .filter(|name| number(name, "rp_filter").is_some_and(|own| own.max(all) == STRICT))
        .filter(|name| number(name, "src_valid_mark") == Some(0))
        .collect();
    strict.sort();
    strict
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn filter_is_strict_by_the_larger_value_unless_the_device_uses_marks() {
        let folder = std::env::temp_dir().join(format!("linerate-strict-{}", std::process::id()));
        let set = |device: &str, rp_filter: &str, mark: &str| {
            fs::create_dir_all(folder.join(device)).unwrap();
            fs::write(folder.join(device).join("rp_filter"), rp_filter).unwrap();
            fs::write(folder.join(device).join("src_valid_mark"), mark).unwrap();
        };
        for (all, wanted) in
            [("0\n", &["eth0"][..]), ("1\n", &["eth0", "eth1", "eth4"]), ("2\n", &[])]
        {
            set("all", all, "0\n");
            set("default", "1\n", "0\n");
            set("lo", "1\n", "0\n");
            set("wg0", "1\n", "0\n");
            set("eth0", "1\n", "0\n");
            set("eth1", "0\n", "0\n");
            set("eth2", "2\n", "0\n");
            set("eth3", "1\n", "1\n");
            set("eth4", "0\n", "0\n");
            assert_eq!(strict_devices(&folder, "wg0"), wanted, "all is {all}");
        }
        fs::remove_dir_all(&folder).unwrap();
    }

    #[test]
    fn unwritten_settings_are_displayed_as_container_arguments() {
        let unwritten =
            ["ipv4/ip_forward", "ipv6/conf/eth0.7/accept_ra"].map(|name| UnwrittenSetting {
                path: Path::new("/proc/sys/net").join(name),
                value: "1",
                error: io::ErrorKind::ReadOnlyFilesystem.into(),
            });
        assert_eq!(
            UnwrittenList(&unwritten).to_string(),
            "net.ipv4.ip_forward is not 1, net.ipv6.conf.eth0/7.accept_ra is not 1 and cannot be \
             set here (read-only filesystem or storage medium); start a container with --sysctl \
             net.ipv4.ip_forward=1 --sysctl net.ipv6.conf.eth0/7.accept_ra=1"
        );
    }
}
