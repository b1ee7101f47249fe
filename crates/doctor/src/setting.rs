//! Settings of the host that fix findings.

use std::{fmt, fs, io, str::FromStr};

use sys::{Errno, ethtool, netlink::Netlink};

/// A part of the host that has a value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Target {
    /// A kernel setting, by its path under `/proc/sys`.
    Sysctl(String),
    /// A feature of an interface, `on` or `off`.
    Feature {
        /// The interface's name.
        interface: String,
        /// The feature, by the kernel's name.
        feature: String,
    },
    /// The MTU of an interface, in bytes.
    Mtu(String),
}

/// A target and its value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Setting {
    /// What is set.
    pub target: Target,
    /// The value.
    pub value: String,
}

impl Setting {
    /// A kernel setting.
    pub fn sysctl(key: impl Into<String>, value: impl fmt::Display) -> Self {
        Self { target: Target::Sysctl(key.into()), value: value.to_string() }
    }

    /// A feature of an interface.
    pub fn feature(interface: &str, feature: &str, on: bool) -> Self {
        let target =
            Target::Feature { interface: interface.to_owned(), feature: feature.to_owned() };
        Self { target, value: on_off(on).to_owned() }
    }

    /// The MTU of an interface.
    pub fn mtu(interface: &str, mtu: u32) -> Self {
        Self { target: Target::Mtu(interface.to_owned()), value: mtu.to_string() }
    }

    /// The shell command that sets the value.
    pub fn command(&self) -> String {
        let value = &self.value;
        match &self.target {
            // Some interface names contain a dot.
            Target::Sysctl(key) if key.contains('.') => format!("sysctl -w {key}={value}"),
            Target::Sysctl(key) => format!("sysctl -w {}={value}", key.replace('/', ".")),
            Target::Feature { interface, feature } => {
                format!("ethtool -K {interface} {feature} {value}")
            }
            Target::Mtu(interface) => format!("ip link set {interface} mtu {value}"),
        }
    }
}

fn on_off(on: bool) -> &'static str {
    if on { "on" } else { "off" }
}

impl fmt::Display for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Sysctl(key) => write!(f, "sysctl {key}"),
            Self::Feature { interface, feature } => write!(f, "feature {interface} {feature}"),
            Self::Mtu(interface) => write!(f, "mtu {interface}"),
        }
    }
}

/// The text is not a [`Target`].
#[derive(Debug, PartialEq, Eq)]
pub struct ParseTargetError;

impl FromStr for Target {
    type Err = ParseTargetError;

    fn from_str(text: &str) -> Result<Self, ParseTargetError> {
        let words: Vec<&str> = text.split(' ').collect();
        match words[..] {
            // The path must not leave /proc/sys.
            ["sysctl", key]
                if !key.starts_with('/') && !key.split('/').any(|part| part == "..") =>
            {
                Ok(Self::Sysctl(key.to_owned()))
            }
            ["feature", interface, feature] => {
                Ok(Self::Feature { interface: interface.to_owned(), feature: feature.to_owned() })
            }
            ["mtu", interface] => Ok(Self::Mtu(interface.to_owned())),
            _ => Err(ParseTargetError),
        }
    }
}

/// Access to the settings of a host.
pub trait Settings {
    /// The value; `None` if the target does not exist.
    ///
    /// # Errors
    /// It could not be read.
    fn read(&self, target: &Target) -> io::Result<Option<String>>;

    /// Writes a value.
    ///
    /// # Errors
    /// It was refused.
    fn write(&self, target: &Target, value: &str) -> io::Result<()>;
}

/// This host.
#[derive(Clone, Copy, Debug)]
pub struct Host;

impl Settings for Host {
    fn read(&self, target: &Target) -> io::Result<Option<String>> {
        let value = match target {
            Target::Sysctl(key) => sysctl(key).map(Some),
            Target::Feature { interface, feature } => ethtool::features(interface)
                .map(|features| Some(on_off(features.get(feature)?.active).to_owned())),
            Target::Mtu(interface) => Netlink::open()
                .and_then(|netlink| netlink.link_by_name(interface))
                .map(|link| link.map(|link| link.mtu.to_string()))
                .map_err(io::Error::from),
        };
        match value {
            Err(error)
                if error.kind() == io::ErrorKind::NotFound
                    || error.raw_os_error() == Some(Errno::ENODEV as i32) =>
            {
                Ok(None)
            }
            value => value,
        }
    }

    fn write(&self, target: &Target, value: &str) -> io::Result<()> {
        match target {
            Target::Sysctl(key) => fs::write(format!("/proc/sys/{key}"), value),
            Target::Feature { interface, feature } => {
                ethtool::set_feature(interface, feature, value == "on")
            }
            Target::Mtu(interface) => {
                let mtu = value.parse().map_err(io::Error::other)?;
                let netlink = Netlink::open()?;
                let link = netlink.link_by_name(interface)?.ok_or(io::ErrorKind::NotFound)?;
                Ok(netlink.set_mtu(link.index, mtu)?)
            }
        }
    }
}

/// Reads a kernel setting. Its words are separated by single spaces.
pub(super) fn sysctl(key: &str) -> io::Result<String> {
    let text = fs::read_to_string(format!("/proc/sys/{key}"))?;
    Ok(text.split_whitespace().collect::<Vec<_>>().join(" "))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn setting_has_a_command_and_its_target_parses_back() {
        let settings = [
            (
                Setting::sysctl("net/ipv4/conf/all/rp_filter", 2),
                "sysctl -w net.ipv4.conf.all.rp_filter=2",
            ),
            (
                Setting::sysctl("net/ipv4/conf/eth0.7/rp_filter", 2),
                "sysctl -w net/ipv4/conf/eth0.7/rp_filter=2",
            ),
            (Setting::feature("eth0", "rx-gro", true), "ethtool -K eth0 rx-gro on"),
            (Setting::mtu("wg0", 1380), "ip link set wg0 mtu 1380"),
        ];
        for (setting, command) in settings {
            assert_eq!(setting.command(), command);
            assert_eq!(setting.target.to_string().parse(), Ok(setting.target));
        }
    }

    #[test]
    fn invalid_targets_are_rejected() {
        for text in ["", "sysctl", "sysctl /etc/passwd", "sysctl net/../../etc", "mtu a b", "x y"] {
            assert_eq!(text.parse::<Target>(), Err(ParseTargetError), "{text}");
        }
    }
}
