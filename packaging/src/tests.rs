mod documents;

use std::{fs, path::PathBuf, process::Command};

use super::*;

/// A folder with the generated files. Dropping it removes the folder.
struct Written(PathBuf);

impl Written {
    fn new(name: &str) -> Self {
        let folder =
            std::env::temp_dir().join(format!("linerate-manuals-{name}-{}", std::process::id()));
        write(&folder).unwrap();
        Self(folder)
    }

    fn read(&self, path: &str) -> String {
        fs::read_to_string(self.0.join(path)).unwrap_or_else(|error| panic!("{path}: {error}"))
    }
}

impl Drop for Written {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// The page of each command, and the command. The page of `linerate set offload` is
/// `linerate-set-offload`.
fn pages(command: &clap::Command, name: String) -> Vec<(String, clap::Command)> {
    let visible = command.get_subcommands().filter(|sub| !sub.is_hide_set());
    let below = visible.flat_map(|sub| pages(sub, format!("{name}-{}", sub.get_name())));
    let mut all: Vec<_> = below.collect();
    all.push((name, command.clone()));
    all
}

/// The text of a page without the escapes of roff.
fn plain(page: &str) -> String {
    let mut text = page.replace("\\-", "-").replace("\\'", "'");
    for escape in ["\\fB", "\\fI", "\\fR"] {
        text = text.replace(escape, "");
    }
    text.replace("\\*(Aq", "'")
}

#[test]
fn packages_share_no_manual_page() {
    let written = Written::new("both");
    let [ours, servers] = ["linerate", "linerate-server"].map(|program| {
        let folder = fs::read_dir(written.0.join(program).join("man")).unwrap();
        folder.map(|page| page.unwrap().file_name()).collect::<std::collections::BTreeSet<_>>()
    });
    assert_eq!(ours.intersection(&servers).count(), 0, "{ours:?}");
}

#[test]
fn each_command_has_a_page_with_all_its_options() {
    let written = Written::new("pages");
    let ours = pages(&cli::command(), "linerate".into());
    assert!(ours.len() > 10, "{} pages", ours.len());
    let servers = pages(&server::program::command(), "linerate-server".into());
    let all = ours.into_iter().filter(|(name, _)| name != "linerate-server");
    let all = all.map(|page| ("linerate", page));
    for (program, (name, command)) in
        all.chain(servers.into_iter().map(|page| ("linerate-server", page)))
    {
        let page = plain(&written.read(&format!("{program}/man/{name}.1")));
        let about = command.get_about().unwrap_or_else(|| panic!("{name} has no description"));
        let first = about.to_string();
        assert!(page.contains(first.lines().next().unwrap()), "{name}: {first}");
        let shown = command.get_arguments().filter(|argument| !argument.is_hide_set());
        for option in shown.filter_map(|argument| argument.get_long()) {
            assert!(page.contains(&format!("--{option}")), "{name}: --{option}");
        }
    }
    let main = written.read("linerate/man/linerate.1");
    assert!(main.contains(".SH FILES") && main.contains("LOG_LEVEL"), "{main}");
}

#[test]
fn configuration_page_describes_each_key_and_is_referenced() {
    let written = Written::new("conf");
    let page = written.read("linerate/man/linerate.conf.5");
    let mut tagged = Vec::new();
    for (before, line) in page.lines().zip(page.lines().skip(1)) {
        if before == ".TP" {
            let keys = line.split(" = ").next().unwrap();
            tagged.extend(keys.split("\\fB").filter_map(|word| word.split("\\fR").next()));
        }
    }
    assert!(config::conf::key_names().count() > 30);
    for key in config::conf::key_names() {
        assert!(tagged.contains(&key), "{key} is not in {tagged:?}");
    }
    for page in ["linerate", "linerate-up", "linerate-proxy"] {
        let text = plain(&written.read(&format!("linerate/man/{page}.1")));
        assert!(text.contains("linerate.conf(5)"), "{page}(1) does not name linerate.conf(5)");
    }
    assert!(written.read("linerate/man/linerate.1").contains("NAME.undo"));
}

#[test]
fn default_server_file_has_only_valid_keys_in_comments() {
    let text = include_str!("../server.toml");
    assert!(text.lines().all(|line| line.is_empty() || line.starts_with('#')), "{text}");
    let file = std::env::temp_dir().join(format!("linerate-server-{}.toml", std::process::id()));
    let keys =
        text.lines().filter_map(|line| line.strip_prefix('#').filter(|key| !key.starts_with(' ')));
    fs::write(&file, keys.map(|key| format!("{key}\n")).collect::<String>()).unwrap();
    let read = server::configuration::Configuration::read(Some(&file));
    fs::remove_file(&file).unwrap();
    let configuration = read.unwrap();
    assert!(configuration.acme.is_some() && !configuration.metrics_listen.is_empty());
}

#[test]
fn completions_have_every_command_and_bash_loads_its_file() {
    let written = Written::new("completions");
    for file in ["linerate.bash", "_linerate", "linerate.fish"] {
        let text = written.read(&format!("linerate/completions/{file}"));
        for command in cli::command().get_subcommands() {
            assert!(text.contains(command.get_name()), "{file}: {}", command.get_name());
        }
        assert!(text.contains("cores"), "{file}: --cores");
    }
    let path = written.0.join("linerate/completions/linerate.bash");
    let line = format!(
        ". {} && COMP_WORDS=(linerate ge) COMP_CWORD=1 && _linerate linerate ge linerate && \
         echo ${{COMPREPLY[*]}}",
        path.display()
    );
    let output = Command::new("bash").args(["-c", &line]).output().unwrap();
    let completed = String::from_utf8(output.stdout).unwrap();
    assert_eq!(completed.trim(), "genkey genpsk", "{:?}", String::from_utf8_lossy(&output.stderr));
}

/// Replaces the placeholders of keys in an example.
fn with_keys(example: &str) -> String {
    let mut text = String::new();
    for line in example.lines() {
        let (key, value) = line.split_once(" = ").unwrap_or((line, ""));
        match value.starts_with('<') && value.ends_with('>') {
            true => text += &format!("{key} = {}=\n", "A".repeat(42) + "E"),
            false => text += &format!("{line}\n"),
        }
    }
    text
}

fn example(path: &Path) -> config::conf::Conf {
    let text = fs::read_to_string(path).unwrap_or_else(|error| panic!("{path:?}: {error}"));
    let name = path.file_name().unwrap().to_str().unwrap();
    config::conf::Conf::parse(name, &with_keys(&text)).unwrap_or_else(|error| panic!("{error}"))
}

fn examples() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/examples")
}

#[test]
fn every_example_parses_without_warning_or_hook() {
    let folder = examples();
    let files = fs::read_dir(&folder).unwrap().map(|entry| entry.unwrap().path());
    let files: Vec<_> =
        files.filter(|path| path.extension().is_some_and(|e| e == "conf")).collect();
    assert!(files.len() >= 5, "{files:?}");
    let index = fs::read_to_string(folder.join("README.md")).unwrap();
    for path in files {
        let name = path.file_name().unwrap().to_str().unwrap().to_owned();
        let conf = example(&path);
        assert!(conf.warnings.is_empty(), "{name}: {:?}", conf.warnings);
        assert!(conf.private_key().is_ok(), "{name}");
        assert_eq!(conf.interface.hooks, config::conf::Hooks::default(), "{name}");
        assert!(index.contains(&name), "docs/examples/README.md does not mention {name}");
    }
}

#[test]
fn example_routers_offer_routes_clamp_and_forward() {
    for (name, masquerade) in [("exit-node.conf", true), ("site-to-site.conf", false)] {
        let router = example(&examples().join(name)).interface.router;
        assert!(!router.offered.is_empty(), "{name} offers nothing");
        assert!(router.clamps() && router.ip_forward, "{name}: {router:?}");
        assert_eq!(router.masquerade, masquerade, "{name}");
    }
}

#[test]
fn example_laptop_uses_a_name_server_behind_its_router() {
    let [laptop, router] =
        ["road-warrior.conf", "exit-node.conf"].map(|name| example(&examples().join(name)));
    let servers = laptop.interface.dns.servers;
    assert!(!servers.is_empty());
    for server in servers {
        let router = &router.interface;
        assert!(
            !router.addresses.iter().any(|net| net.contains(&server.address)),
            "{server} is the router"
        );
        assert!(router.router.offered.iter().any(|net| net.contains(&server.address)), "{server}");
    }
}

/// The command line of a unit with these options in its environment file, and the path of that file.
fn started(unit: &str, options: &str) -> (Vec<String>, String) {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("systemd").join(unit);
    let text = fs::read_to_string(path).unwrap();
    let value = |key: &str| {
        let line = text.lines().find_map(|line| line.strip_prefix(key));
        line.unwrap_or_else(|| panic!("{unit} has no {key}")).to_owned()
    };
    // Otherwise systemd warns at each start.
    assert_eq!(value("Environment="), "LINERATE_OPTIONS=");
    let mut words = Vec::new();
    for word in value("ExecStart=").split(' ') {
        match word {
            "$LINERATE_OPTIONS" => words.extend(options.split_whitespace().map(str::to_owned)),
            word => words.push(word.replace("%i", "wg0").replace("%E", "/etc")),
        }
    }
    (words, value("EnvironmentFile="))
}

#[test]
fn units_read_options_from_optional_files() {
    let options = "--metrics 127.0.0.1:9586 --log-format json --cores 2 --offload-off udp-gso";
    for (unit, command, file) in [
        ("linerate@.service", "up", "-/etc/default/linerate-%i"),
        ("linerate-proxy@.service", "proxy", "-%E/linerate/%i.env"),
    ] {
        let (plain, from) = started(unit, "");
        assert_eq!(from, file);
        cli::command().try_get_matches_from(plain).unwrap();
        let matches = cli::command().try_get_matches_from(started(unit, options).0).unwrap();
        let matches = matches.subcommand_matches(command).unwrap();
        assert!(matches.get_raw("metrics").is_some(), "{unit}");
    }
}
