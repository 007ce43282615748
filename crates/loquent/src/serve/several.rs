//! Models that are loaded on demand: their list, their memory needs, their loading, and the
//! download of further ones.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::{Arc, RwLock};
use std::time::Duration;

use anyhow::{Context, bail, ensure};
use loquent_engine::llama::{available_bytes, has_gpu, inspect};
use loquent_server::{
    DownloadProgress, KeeperConfig, KeptModel, KeptModels, LoadedEngine, ModelDownloader,
    ModelLoader, ResidencyLimits,
};

use super::args::{EngineArgs, ServeArgs};
use super::load::{DefaultContext, load_file, modest};
use super::model_name::{self, one_line, part_of};
use super::past_downloads::PastDownloads;
use super::sampling_defaults::sampling_defaults;
use crate::hub::FetchEvent;
use crate::models::{self, ModelFolders};

/// Maximum number of a folder's models to serve.
const MAX_MODELS: usize = 256;
/// Maximum number of a folder's files to examine.
const MAX_FILES: usize = 16_384;
/// Maximum wait of a request for its model without --queue-timeout-s.
const WAIT_LIMIT: Duration = Duration::from_secs(600);

/// A model of this server.
#[derive(Clone)]
struct ModelFile {
    name: String,
    path: PathBuf,
}

/// Loads the models of this server.
struct FileLoader {
    files: RwLock<Vec<ModelFile>>,
    /// Name of the only model at first, and its settings, which those of its profile are part of.
    only: Option<(String, EngineArgs)>,
    /// Settings of other models; each adds those of its own profile.
    engine: EngineArgs,
    /// Where further models come from.
    places: ModelFolders,
}

/// Returns true if models are loaded on demand instead of permanently.
pub(super) fn are_kept(args: &ServeArgs) -> bool {
    let file = &args.source.file;
    let is_several = !file.several().is_empty() || file.folder().is_some();
    // One that has stages is not all in this process.
    let may_go = args.keep.idle().is_some() && !args.engine.staged.is_wanted();
    args.source.simulate.is_none() && (is_several || may_go)
}

/// Finds the models and the memory that each of them needs. Loads none. `others` are the settings
/// of models that join an only one, whose profile is adopted.
///
/// # Errors
/// If a model is missing or broken, or a flag applies only to a single model.
pub(super) fn prepare(
    args: ServeArgs,
    others: EngineArgs,
    wait_limit: Option<Duration>,
) -> anyhow::Result<KeptModels> {
    let files = files(&args)?;
    let (several, config) = (files.len() > 1, keeper_config(&args, wait_limit));
    let (engine, places) = (args.engine, args.source.file.places().clone());
    if several {
        ensure!(
            args.served_model_name.is_none(),
            "--served-model-name is for one model; name each of several by --model NAME=FILE"
        );
        ensure!(
            args.chat_format.chat_template.is_none(),
            "--chat-template is for one model; each of several has that of its file"
        );
        ensure!(!engine.staged.is_wanted(), "--stages serves one model");
        ensure!(!args.source.file.is_pinned(), "--model-sha256 is for one model");
    }
    let models =
        files.iter().map(|file| kept_model(file, &engine)).collect::<Result<Vec<_>, _>>()?;
    warn_of_large(&models, config.residency.memory_bytes);
    let only = (!several).then(|| (files[0].name.clone(), engine));
    let loader = FileLoader { files: RwLock::new(files), only, engine: others, places };
    Ok(loader.keeping(config, models))
}

/// Prepares a server whose only model stays in memory for further ones, which its clients may
/// download. Returns `None` if none can join it.
pub(super) fn prepare_downloads(
    args: &ServeArgs,
    others: EngineArgs,
    wait_limit: Option<Duration>,
) -> Option<KeptModels> {
    // Stages and a pinned hash are of one model.
    if args.source.simulate.is_some() || others.staged.is_wanted() || args.source.file.is_pinned() {
        return None;
    }
    let places = args.source.file.places().clone();
    let loader = FileLoader { files: RwLock::default(), only: None, engine: others, places };
    Some(loader.keeping(keeper_config(args, wait_limit), Vec::new()))
}

fn keeper_config(args: &ServeArgs, wait_limit: Option<Duration>) -> KeeperConfig {
    let residency = ResidencyLimits {
        max_loaded: args.keep.max_loaded(),
        memory_bytes: args.keep.memory_bytes().unwrap_or_else(free_share),
        idle: args.keep.idle(),
    };
    KeeperConfig { residency, wait_limit: wait_limit.unwrap_or(WAIT_LIMIT) }
}

impl FileLoader {
    fn keeping(self, config: KeeperConfig, models: Vec<KeptModel>) -> KeptModels {
        let downloaded = self.downloaded();
        let loader = Arc::new(self);
        KeptModels { config, models, loader: loader.clone(), downloader: Some(loader), downloaded }
    }

    /// Returns the models that clients have had downloaded before and that are still here, each
    /// with the name that they asked for.
    fn downloaded(&self) -> Vec<(String, KeptModel)> {
        let names = self.past_downloads().map(|past| past.names()).unwrap_or_default();
        let known = names.into_iter().filter_map(|name| {
            let path = models::downloaded(&name, &self.places)?;
            match self.know(path) {
                Ok(model) => Some((name, model)),
                Err(error) => {
                    tracing::warn!("{name} is not served: {error:#}");
                    None
                }
            }
        });
        known.take(MAX_MODELS).collect()
    }

    fn past_downloads(&self) -> Option<PastDownloads> {
        self.places.hub().ok().map(|hub| PastDownloads::in_cache(&hub.cache_dir))
    }

    /// Adds the model in the file at `path` to those that can be loaded.
    fn know(&self, path: PathBuf) -> anyhow::Result<KeptModel> {
        let file = ModelFile { name: name_of(&path), path };
        let model = kept_model(&file, &self.engine)?;
        // It may be there already, perhaps in an older version, which requests go on using.
        if self.file(&file.name).is_none() {
            self.files.write().expect("nothing panics under this lock").push(file);
        }
        Ok(model)
    }

    /// Returns the file of the model called `name`.
    fn file(&self, name: &str) -> Option<ModelFile> {
        let files = self.files.read().expect("nothing panics under this lock");
        files.iter().find(|file| file.name == name).cloned()
    }
}

impl ModelLoader for FileLoader {
    fn load(&self, name: &str, progress: &dyn Fn(f32)) -> anyhow::Result<LoadedEngine> {
        let file = self.file(name).context("this server has no such model")?;
        let load = |engine: &EngineArgs| {
            let name = Some(file.name.clone());
            load_file(&file.path, engine, name, DefaultContext::Modest, progress)
        };
        if let Some((only, engine)) = &self.only
            && only == name
        {
            // It has its profile since the start.
            return load(engine);
        }
        let (engine, tuned) = self.engine.tuned_for(&file.path)?;
        if let Some(tuned) = tuned {
            tracing::info!("{} is tuned: {tuned}", file.name);
        }
        load(&engine)
    }

    fn free_bytes(&self) -> Option<u64> {
        // What lies on a GPU takes nothing here.
        available_bytes().filter(|_| !has_gpu())
    }
}

impl ModelDownloader for FileLoader {
    fn download(&self, name: &str, progress: &DownloadProgress) -> anyhow::Result<KeptModel> {
        let mut size = DownloadSize::default();
        let path = models::download(name, &self.places, progress.stopped(), &mut |event| {
            size.on_event(&event);
            progress.set(size.done_bytes(), size.total_bytes, size.kept_bytes);
        })?;
        let model = self.know(path)?;
        if let Some(Err(error)) = self.past_downloads().map(|past| past.add(name)) {
            tracing::warn!("{name} is served until the server ends: it is not noted: {error}");
        }
        Ok(model)
    }
}

/// Bytes of a download, over the files of the model.
#[derive(Default)]
struct DownloadSize {
    total_bytes: u64,
    /// Bytes that earlier attempts left.
    kept_bytes: u64,
    /// Bytes of the files before the current one.
    before_bytes: u64,
    have_bytes: u64,
}

impl DownloadSize {
    fn on_event(&mut self, event: &FetchEvent) {
        match *event {
            FetchEvent::Started { have_bytes, total_bytes, .. } => {
                self.before_bytes = self.total_bytes;
                self.total_bytes += total_bytes;
                self.kept_bytes += have_bytes;
                self.have_bytes = have_bytes;
            }
            FetchEvent::Advanced { have_bytes } => self.have_bytes = have_bytes,
            FetchEvent::NotRecorded { ref why } => {
                tracing::warn!("{why}; without the network the model may not be found");
            }
            _ => {}
        }
    }

    fn done_bytes(&self) -> u64 {
        self.before_bytes + self.have_bytes
    }
}

/// Returns the default memory limit of models.
fn free_share() -> u64 {
    available_bytes().filter(|_| !has_gpu()).map_or(u64::MAX, |free| free / 10 * 9)
}

/// Returns all models, with distinct names.
fn files(args: &ServeArgs) -> anyhow::Result<Vec<ModelFile>> {
    let source = &args.source.file;
    let files = match source.folder() {
        Some(folder) => files_in(folder)?,
        None if source.several().is_empty() => vec![only_file(args)?],
        None => {
            let named = source.several().iter().map(|model| {
                let path = models::resolve(&model.file, source.places())?;
                let name = model.name.clone().unwrap_or_else(|| name_of(&path));
                Ok(ModelFile { name: one_line(&name), path })
            });
            named.collect::<anyhow::Result<_>>()?
        }
    };
    let mut names = BTreeSet::new();
    for file in &files {
        ensure!(
            names.insert(&file.name),
            "two models are called {:?}; give one another name by --model NAME=FILE",
            file.name
        );
    }
    Ok(files)
}

/// Returns the only model, which may be unloaded.
fn only_file(args: &ServeArgs) -> anyhow::Result<ModelFile> {
    let path = args.source.file.fetch()?;
    let said = args.served_model_name.clone();
    let said = said.or_else(|| args.source.file.api_name().map(str::to_owned));
    let name = said.filter(|name| !name.is_empty()).unwrap_or_else(|| name_of(&path));
    Ok(ModelFile { name: one_line(&name), path })
}

/// Returns the name of the model in the file at `path`.
fn name_of(path: &Path) -> String {
    let header = inspect(path).ok().map(|it| it.header);
    let inner = header.as_ref().and_then(|header| header.get("general.name")?.as_str());
    model_name::of_file(path, inner)
}

/// Returns the GGUF files of a folder, in the order of their names; for a model in several files,
/// the first.
fn files_in(folder: &Path) -> anyhow::Result<Vec<ModelFile>> {
    let entries = std::fs::read_dir(folder)
        .with_context(|| format!("--models-dir: cannot read the folder {}", folder.display()))?;
    let paths = entries.take(MAX_FILES).filter_map(|entry| entry.ok().map(|entry| entry.path()));
    let mut paths: Vec<_> = paths.filter(|path| is_model(path)).collect();
    paths.sort();
    if paths.len() > MAX_MODELS {
        tracing::warn!("{} has {} models; {MAX_MODELS} are served", folder.display(), paths.len());
        paths.truncate(MAX_MODELS);
    }
    let mut files = Vec::new();
    for path in paths {
        match inspect(&path) {
            Ok(_) => files.push(ModelFile { name: name_of(&path), path }),
            Err(error) => tracing::warn!("{} is not served: {error}", path.display()),
        }
    }
    if files.is_empty() {
        bail!("there is no model in {}; put GGUF files there, or name a model", folder.display());
    }
    Ok(files)
}

/// Returns true if a file is the first of a model, judging by its name.
fn is_model(path: &Path) -> bool {
    let is_gguf = path.extension().is_some_and(|it| it.eq_ignore_ascii_case("gguf"));
    let stem = path.file_stem().map(|stem| stem.to_string_lossy()).unwrap_or_default();
    // What goes with a model, or is a part of one.
    let is_part = stem.starts_with("mmproj")
        || stem.contains("-stage-")
        || stem.ends_with("-entry")
        || part_of(&stem).is_some_and(|(_, part)| part != "00001");
    is_gguf && path.is_file() && !is_part
}

/// Returns the memory needs of the model in `file`: its file, and the keys and values of its cache.
fn kept_model(file: &ModelFile, engine: &EngineArgs) -> anyhow::Result<KeptModel> {
    let inspected = inspect(&file.path)?;
    let trained = inspected.header.model_number("context_length").unwrap_or(0);
    let (_, cells) = engine.sizes(modest(u32::try_from(trained).unwrap_or(u32::MAX)))?;
    let cache = engine.kv_type.bytes(inspected.header.kv_elements().saturating_mul(cells.into()));
    let file_bytes = inspected.size_bytes;
    Ok(KeptModel {
        name: file.name.clone(),
        bytes: file_bytes.saturating_add(cache),
        file_bytes,
        sampling: sampling_defaults(&inspected.header, engine.sampling),
    })
}

fn warn_of_large(models: &[KeptModel], most: u64) {
    for model in models.iter().filter(|model| model.bytes > most) {
        tracing::warn!(
            "{} takes {} MiB with its cache, and all models together may take {} MiB: it will not \
             be loaded. A shorter --context makes it smaller; --models-memory-mib allows more.",
            model.name,
            model.bytes >> 20,
            most >> 20
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_model_in_several_files_is_one_and_parts_are_none() {
        let folder = tempfile::tempdir().unwrap();
        let make = |name: &str| {
            let path = folder.path().join(name);
            std::fs::write(&path, "").unwrap();
            path
        };
        for (name, expected) in [
            ("a.gguf", Some("a")),
            ("B.Q4_K_M.GGUF", Some("B.Q4_K_M")),
            ("big-00001-of-00003.gguf", Some("big")),
            ("big-00002-of-00003.gguf", None),
            ("mmproj-a.gguf", None),
            ("a-stage-1-of-2.gguf", None),
            ("a-entry.gguf", None),
            ("notes.txt", None),
        ] {
            let path = make(name);
            let named = is_model(&path).then(|| name_of(&path));
            assert_eq!(named.as_deref(), expected, "{name}");
        }
        let none = folder.path().join("none");
        assert!(files_in(&none).is_err());
    }
}
