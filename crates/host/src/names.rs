//! Reads the names of routing tables and services on this machine.

use std::{
    collections::BTreeMap,
    fs,
    path::{Path, PathBuf},
};

use config::conf::Names;

/// The folders of iproute2's files; the first takes precedence (ip-route(8)).
const FOLDERS: [&str; 2] = ["/etc/iproute2", "/usr/share/iproute2"];
const SERVICES: &str = "/etc/services";

/// Reads the names. A file that cannot be read is skipped.
pub fn read_names() -> Names {
    let mut names = Names::default();
    for text in table_files(FOLDERS.map(Path::new)).iter().filter_map(|path| read(path)) {
        names.add_tables(&text);
    }
    if let Some(text) = read(Path::new(SERVICES)) {
        names.add_services(&text);
    }
    names
}

/// The first `rt_tables` and all files `rt_tables.d/*.conf`; of files with equal names, the first.
fn table_files(folders: [&Path; 2]) -> Vec<PathBuf> {
    let main = folders.map(|folder| folder.join("rt_tables")).into_iter().find(|p| p.exists());
    let mut more = BTreeMap::new();
    for folder in folders {
        let entries = fs::read_dir(folder.join("rt_tables.d")).into_iter().flatten().flatten();
        let paths = entries.map(|entry| entry.path());
        for path in paths.filter(|path| path.extension().is_some_and(|end| end == "conf")) {
            more.entry(path.file_name().map(ToOwned::to_owned)).or_insert(path);
        }
    }
    main.into_iter().chain(more.into_values()).collect()
}

fn read(path: &Path) -> Option<String> {
    Some(String::from_utf8_lossy(&fs::read(path).ok()?).into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_of_the_first_folder_take_precedence() {
        let root = std::env::temp_dir().join(format!("linerate-names-{}", std::process::id()));
        let [etc, usr] = ["etc", "usr"].map(|folder| root.join(folder));
        for folder in [&etc, &usr] {
            fs::create_dir_all(folder.join("rt_tables.d")).unwrap();
        }
        let found = || -> Vec<_> {
            let files = table_files([&etc, &usr]);
            files.iter().map(|path| path.strip_prefix(&root).unwrap().to_owned()).collect()
        };
        let names = |names: &[&str]| names.iter().map(PathBuf::from).collect::<Vec<_>>();
        assert_eq!(found(), names(&[]));
        for file in ["usr/rt_tables", "usr/rt_tables.d/a.conf", "usr/rt_tables.d/b.conf"] {
            fs::write(root.join(file), "").unwrap();
        }
        fs::write(etc.join("rt_tables.d/a.conf"), "").unwrap();
        fs::write(etc.join("rt_tables.d/README"), "").unwrap();
        let more = ["etc/rt_tables.d/a.conf", "usr/rt_tables.d/b.conf"];
        assert_eq!(found(), names(&["usr/rt_tables", more[0], more[1]]));
        fs::write(etc.join("rt_tables"), "").unwrap();
        assert_eq!(found(), names(&["etc/rt_tables", more[0], more[1]]));
        fs::remove_dir_all(root).unwrap();
    }
}
