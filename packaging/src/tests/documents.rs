//! All Markdown files of the tree: their links, and the book that `make book` builds of docs/.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::{Component, Path, PathBuf},
};

use pulldown_cmark::{Event, Options, Parser, Tag, TagEnd};

/// The headings and links of a file.
struct Page {
    anchors: BTreeSet<String>,
    links: Vec<String>,
}

impl Page {
    fn read(text: &str) -> Self {
        let mut page = Self { anchors: BTreeSet::new(), links: Vec::new() };
        let mut heading = None;
        for event in Parser::new_ext(text, Options::ENABLE_TABLES) {
            match event {
                Event::Start(Tag::Heading { .. }) => heading = Some(String::new()),
                Event::End(TagEnd::Heading(_)) => {
                    page.add_anchor(&heading.take().unwrap_or_default());
                }
                Event::Text(text) | Event::Code(text) => {
                    heading.iter_mut().for_each(|heading| heading.push_str(&text));
                }
                Event::Start(Tag::Link { dest_url, .. } | Tag::Image { dest_url, .. }) => {
                    page.links.push(dest_url.into_string());
                }
                _ => {}
            }
        }
        page
    }

    /// Adds the anchor that GitHub and mdBook give a heading.
    fn add_anchor(&mut self, heading: &str) {
        let kept = heading.chars().filter_map(|c| match c {
            ' ' => Some('-'),
            c if c.is_alphanumeric() || c == '-' || c == '_' => Some(c),
            _ => None,
        });
        let anchor = kept.collect::<String>().to_lowercase();
        let numbered = (1..).map(|number| format!("{anchor}-{number}"));
        let mut candidates = [anchor.clone()].into_iter().chain(numbered);
        let free = candidates.find(|one| !self.anchors.contains(one));
        self.anchors.extend(free);
    }

    /// The links into the tree: file and anchor, each empty if absent.
    fn relative_links(&self) -> impl Iterator<Item = (&str, &str)> {
        let relative =
            self.links.iter().filter(|link| !link.contains("://") && !link.starts_with("mailto:"));
        relative.map(|link| link.split_once('#').unwrap_or((link, "")))
    }
}

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..").canonicalize().unwrap()
}

/// All Markdown files of the tree, by their path below its root.
fn pages() -> BTreeMap<PathBuf, Page> {
    let (root, mut pages) = (root(), BTreeMap::new());
    let mut folders = vec![root.clone()];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(&folder).unwrap() {
            let path = entry.unwrap().path();
            let name = path.file_name().unwrap().to_string_lossy().into_owned();
            if name.starts_with('.') || name.starts_with("target") || name == "node_modules" {
                continue;
            }
            if path.is_dir() && !path.is_symlink() {
                folders.push(path);
            } else if name.ends_with(".md") {
                let page = Page::read(&fs::read_to_string(&path).unwrap());
                pages.insert(path.strip_prefix(&root).unwrap().to_owned(), page);
            }
        }
    }
    pages
}

/// The path below the root of a link's file, which may be the page itself.
fn target(page: &Path, file: &str) -> PathBuf {
    if file.is_empty() {
        return page.to_owned();
    }
    let mut path = page.parent().unwrap().to_owned();
    for part in Path::new(file).components() {
        match part {
            Component::ParentDir => assert!(path.pop(), "{page:?}: {file} leads out of the tree"),
            part => path.push(part),
        }
    }
    path
}

#[test]
fn relative_links_lead_to_files_and_headings() {
    let (root, pages) = (root(), pages());
    assert!(pages.len() > 30, "{} files", pages.len());
    let mut broken = Vec::new();
    for (path, page) in &pages {
        for (file, anchor) in page.relative_links() {
            let target = target(path, file);
            let is_there = match (anchor, pages.get(&target)) {
                ("", _) => root.join(&target).exists(),
                (anchor, Some(page)) => page.anchors.contains(anchor),
                // A line of a source file.
                (_, None) => root.join(&target).is_file(),
            };
            if !is_there {
                broken.push(format!("{}: {file}#{anchor}", path.display()));
            }
        }
    }
    assert!(broken.is_empty(), "{broken:#?}");
}

#[test]
fn book_has_all_pages_of_docs_and_all_files_that_they_link_to() {
    let pages = pages();
    let summary = Path::new("docs/SUMMARY.md");
    let chapters: BTreeSet<PathBuf> =
        pages[summary].relative_links().map(|(file, _)| target(summary, file)).collect();
    let missing: Vec<_> =
        pages.keys().filter(|page| page.starts_with("docs") && !chapters.contains(*page)).collect();
    assert!(missing.is_empty(), "not in docs/SUMMARY.md: {missing:?}");
    for chapter in &chapters {
        for (file, _) in pages[chapter].relative_links() {
            let target = target(chapter, file);
            let is_copied = target.starts_with("docs") || target == Path::new("LICENSE");
            let is_page = target.extension().is_some_and(|end| end == "md");
            let is_in_book = if is_page { chapters.contains(&target) } else { is_copied };
            assert!(is_in_book, "{chapter:?}: {file} is not in the book");
            assert!(!root().join(&target).is_dir(), "{chapter:?}: {file} is a folder");
        }
    }
}

#[test]
fn page_of_commands_has_every_command() {
    let text = fs::read_to_string(root().join("docs/commands.md")).unwrap();
    for command in [cli::command(), server::program::command()] {
        let program = command.get_name();
        let program = if program == "linerate" { program } else { "linerate-server" };
        for name in command.get_subcommands().filter(|sub| !sub.is_hide_set()) {
            let name = format!("`{program} {}`", name.get_name());
            assert!(text.contains(&name) || name.contains(" help`"), "no {name}");
        }
    }
}

#[test]
fn anchors_are_those_of_github() {
    let page = Page::read("# [Interface]: keys of `linerate proxy`\n## A\n## A\n### b_c, d–e\n");
    let anchors: Vec<&str> = page.anchors.iter().map(String::as_str).collect();
    assert_eq!(anchors, ["a", "a-1", "b_c-de", "interface-keys-of-linerate-proxy"]);
}
