//! Loads the model of `loquent serve` and `loquent bench engine`: a GGUF file, the entry file of a
//! split model, or the simulated engine.

use std::sync::Arc;
use std::time::Duration;

use loquent_engine::sim::{SimOptions, SimRunner, StepPace, WorkTimes};
use loquent_formats::template::{CHATML, ChatTemplate};
use loquent_infer::runner::Capacity;
use loquent_infer::sim_vocab::SimVocab;
use loquent_server::{
    ChatFormat, GrammarSource, LoadedEngine, ModelFacts, SamplingDefaults, ServedModel, end_tokens,
    unix_time_s,
};

use super::args::{EngineArgs, SourceArgs};
use super::cache_sizes;

/// Default of `--context` with the simulated engine.
const SIMULATED_CONTEXT_TOKENS: u32 = 16_384;

/// Default of the context if no flag sets it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[cfg_attr(not(feature = "llama"), allow(dead_code, reason = "for models, which it cannot load"))]
pub(crate) enum DefaultContext {
    /// As long as the free memory allows.
    OfMemory,
    /// For one of several models, which must not depend on the memory left by the others.
    Modest,
}

/// Loads the model or the simulated engine. `name` replaces the model's own name in the API.
///
/// # Errors
/// If the model is missing, broken or too large; the message contains advice.
pub(crate) fn load(
    source: &SourceArgs,
    engine: &EngineArgs,
    name: Option<String>,
) -> anyhow::Result<LoadedEngine> {
    match &source.simulate {
        Some(_) if engine.engine_process => {
            anyhow::bail!("--engine-process is for real models; leave it away with --simulate")
        }
        Some(pace) => simulated(engine, name, pace.clone()),
        None if engine.staged.is_wanted() => staged(source, engine, name),
        None => real(source, engine, name),
    }
}

fn simulated(
    engine: &EngineArgs,
    name: Option<String>,
    pace: StepPace,
) -> anyhow::Result<LoadedEngine> {
    let (context_tokens, kv_cells) = engine.sizes(SIMULATED_CONTEXT_TOKENS)?;
    let batch = engine.max_batch_size;
    let capacity = Capacity {
        // As with llama.cpp.
        slots: Capacity::shared_slots(batch, kv_cells),
        kv_cells,
        context_tokens,
        batch_tokens: engine.batch_tokens(kv_cells),
        shares_prefix: true,
    };
    let description = describe(&pace).into();
    let runner = SimRunner::new(SimOptions { capacity, pace, faults: Vec::new() });
    let model = ServedModel {
        name: name.unwrap_or_else(|| "loquent-simulated".into()),
        end_tokens: end_tokens(&SimVocab),
        vocab: Arc::new(SimVocab),
        chat: Arc::new(ChatFormat {
            template: ChatTemplate::new(CHATML)?,
            is_guessed: false,
            variables: engine.chat_format.variables.clone(),
            bos: String::new(),
            eos: String::new(),
        }),
        context_tokens,
        trained_context: None,
        facts: ModelFacts::default(),
        defaults: SamplingDefaults { operator: engine.sampling, ..SamplingDefaults::default() },
        created_s: unix_time_s(),
        grammars: GrammarSource::default(),
        // Its pace makes no other answers.
        computed_by: format!("simulated, KV type {}", engine.kv_type),
    };
    Ok(LoadedEngine { runner: Box::new(runner), model, description, stages: None })
}

/// Describes the simulated engine in a few words.
fn describe(pace: &StepPace) -> String {
    match pace {
        StepPace::Fixed { step } => {
            let rate = (1_000.0 / step.as_secs_f64()).round() / 1_000.0;
            format!("simulated, {rate} tokens/s for each answer")
        }
        StepPace::ByWork(WorkTimes { step, row, prompt_token }) => {
            format!("simulated, {step:?} a step, {row:?} a row, {prompt_token:?} a prompt token")
        }
        StepPace::None | StepPace::Recorded(_) => "simulated, as fast as possible".into(),
    }
}

#[cfg(feature = "llama")]
pub(crate) use llama::{Computing, computing};
#[cfg(feature = "llama")]
pub(super) use llama::{load_file, modest};
#[cfg(feature = "llama")]
use llama::{real, staged};

#[cfg(not(feature = "llama"))]
fn staged(
    _source: &SourceArgs,
    _engine: &EngineArgs,
    _name: Option<String>,
) -> anyhow::Result<LoadedEngine> {
    anyhow::bail!("this build has no engine (cargo feature 'llama'), so no stages either")
}

#[cfg(not(feature = "llama"))]
fn real(
    _source: &SourceArgs,
    _engine: &EngineArgs,
    _name: Option<String>,
) -> anyhow::Result<LoadedEngine> {
    anyhow::bail!("this build has no engine (cargo feature 'llama'); it can --simulate only")
}

#[cfg(feature = "llama")]
mod llama {
    use std::num::NonZeroU16;
    use std::path::Path;

    use anyhow::{Context, bail};
    use indicatif::{ProgressBar, ProgressStyle};
    use loquent_engine::GpuLayers;
    use loquent_engine::llama::{
        EmbeddingTraits, Embeddings, FlashAttention, Isa, LlamaEmbedder, LlamaModel, LlamaRunner,
        LlamaVocab, LoadOptions, MAX_SLOTS, ModelInfo, RunnerOptions, SMALL_MODEL_BYTES,
        at_most_processors, has_gpu, inspect, own_kernels_lack, physical_cores,
    };
    use loquent_engine::process::{EngineFacts, ProcessRunner};
    use loquent_engine::staged::{Cluster, ClusterOptions, Key, StagedRunner};
    use loquent_formats::gguf::split::StageKeys;
    use loquent_infer::embedding::EmbeddingOnly;
    use loquent_infer::remote::RemoteStages;
    use loquent_infer::runner::Runner;
    use loquent_infer::token::TokenId;
    use loquent_infer::vocab::Vocab;
    use loquent_server::Description;

    use super::super::args::{KvLayout, Switch};
    use super::super::cache_sizes::{self, ContextNeeds, DEFAULT_CONTEXT_TOKENS, SlotLayout};
    use super::super::launcher::launcher;
    use super::super::model_hash::hash_of;
    use super::super::model_name;
    use super::super::sampling_defaults::sampling_defaults;
    use super::*;
    use crate::doctor::gpu;
    use crate::model_part::part_of_model;

    /// Loads a GGUF file into llama.cpp.
    pub(super) fn real(
        source: &SourceArgs,
        engine: &EngineArgs,
        name: Option<String>,
    ) -> anyhow::Result<LoadedEngine> {
        let path = source.file.fetch()?;
        warn_of_missing_gpu(engine.gpu_layers);
        let bar = progress_bar();
        let loaded = load_file(&path, engine, name, DefaultContext::OfMemory, &|share| {
            bar.set_position((share * 100.0) as u64);
        });
        bar.finish_and_clear();
        loaded
    }

    /// Loads the file at `path`, with the context that `default` selects if no flag sets it.
    pub(crate) fn load_file(
        path: &Path,
        engine: &EngineArgs,
        name: Option<String>,
        default: DefaultContext,
        progress: &dyn Fn(f32),
    ) -> anyhow::Result<LoadedEngine> {
        if let Some(part) = inspect(path).ok().and_then(|it| part_of_model(&it.header)) {
            bail!("{} is {}; {}", path.display(), part.what, part.advice);
        }
        if engine.engine_process {
            return beside(path, engine, name, default, progress);
        }
        let Computing { weights, runner, description } =
            computing(path, engine, default, progress)?;
        let context_tokens = runner.capacity().context_tokens;
        let model = describe(name, &weights, path, engine, context_tokens)?;
        Ok(LoadedEngine { runner, model, description, stages: None })
    }

    /// A model with its weights and its runner.
    pub(crate) struct Computing {
        pub(crate) weights: Arc<LlamaModel>,
        pub(crate) runner: Box<dyn Runner>,
        pub(crate) description: Description,
    }

    /// Loads the weights at `path`, and reports the loaded share to `progress`.
    pub(crate) fn computing(
        path: &Path,
        engine: &EngineArgs,
        default: DefaultContext,
        progress: &dyn Fn(f32),
    ) -> anyhow::Result<Computing> {
        let options = LoadOptions {
            gpu_layers: engine.gpu_layers,
            kv_cells: gpu_kv_cells(engine, path)?,
            kv_type: engine.kv_type,
            own_kernels: engine.tuning.choose_kernels()?,
            rpc: engine.staged.rpc(),
            ..LoadOptions::default()
        };
        let weights = LlamaModel::load(path, &options, |share| {
            progress(share);
            true
        })?;
        let threads = engine.threads.unwrap_or_else(|| threads_for(&weights));
        let threads = at_most_processors(threads);
        let sizes = engine.sizes(match default {
            DefaultContext::OfMemory => default_context(engine, &weights),
            DefaultContext::Modest => modest(weights.info().context_train),
        })?;
        warn_beyond_training(sizes.0, weights.info().context_train);
        let runner = runner(engine, &weights, threads, sizes)?;
        let words = if threads.get() == 1 { "thread" } else { "threads" };
        // llama.cpp writes "?B" for a size class that it does not know.
        let about = weights.info().description.replace("?B ", "");
        let mut details = vec![("Kernels".to_owned(), kernels(&weights))];
        if has_gpu() {
            details.push(("Device".to_owned(), weights.placement().to_string()));
        }
        let summary = format!("{about}, {threads} {words}");
        let description = Description { summary, details };
        Ok(Computing { weights, runner, description })
    }

    /// Starts a separate process that computes; this one loads only the vocabulary.
    fn beside(
        path: &Path,
        engine: &EngineArgs,
        name: Option<String>,
        default: DefaultContext,
        progress: &dyn Fn(f32),
    ) -> anyhow::Result<LoadedEngine> {
        let launch = launcher(path, engine, default == DefaultContext::Modest);
        let share = |percent| progress(f32::from(percent) / 100.0);
        let runner = ProcessRunner::start(launch, engine.engine_timeout(), share)?;
        // The other process has found the memory for the weights.
        let memory_bytes = Some(u64::MAX);
        let options = LoadOptions { vocab_only: true, memory_bytes, ..LoadOptions::default() };
        let vocab = LlamaModel::load(path, &options, |_| true)?;
        let EngineFacts { capacity, summary, details, .. } = runner.facts();
        let model = describe(name, &vocab, path, engine, capacity.context_tokens)?;
        let summary = format!("{summary}, in a process of its own");
        let description = Description { summary, details: details.clone() };
        Ok(LoadedEngine { runner: Box::new(runner), model, description, stages: None })
    }

    /// Loads the entry file of a split model and connects to its stages.
    pub(super) fn staged(
        source: &SourceArgs,
        engine: &EngineArgs,
        name: Option<String>,
    ) -> anyhow::Result<LoadedEngine> {
        source.file.name().context("--stages needs --model NAME-entry.gguf")?;
        if engine.engine_process {
            bail!(
                "--engine-process is for whole models: stages survive a crash of another process \
                 anyway; run those of this machine as `loquent stage`"
            );
        }
        let path = source.file.fetch()?;
        // llama.cpp only tokenizes here; the embeddings are read from the file row by row.
        let options = LoadOptions { vocab_only: true, ..LoadOptions::default() };
        let entry = LlamaModel::load(&path, &options, |_| true)?;
        let Some(keys) = StageKeys::of(entry.header()).filter(|keys| keys.is_entry()) else {
            bail!("{} is no entry file; create one with loquent split", path.display());
        };
        let embeddings = Embeddings::open(&path)?;
        let context_train = entry.header().model_number("context_length").unwrap_or(0) as u32;
        let sizes = engine.sizes(context_train.min(DEFAULT_CONTEXT_TOKENS))?;
        warn_beyond_training(sizes.0, context_train);
        let cluster = connect(engine, sizes)?;
        let stages = cluster.sizes();
        if stages[0].keys.fingerprint != keys.fingerprint || stages[0].width != embeddings.width() {
            bail!(
                "the stages belong to another model than {}; use files of one split",
                path.display()
            );
        }
        let depth = engine.staged.pipeline_depth;
        let runner = StagedRunner::new(cluster.clone(), Box::new(embeddings), depth);
        let context_tokens = runner.capacity().context_tokens;
        let model = describe(name, &entry, &path, engine, context_tokens)?;
        let description = format!("{} stages, {} layers", stages.len(), keys.all_layers).into();
        let stages: Arc<dyn RemoteStages> = Arc::new(cluster);
        Ok(LoadedEngine { runner: Box::new(runner), model, description, stages: Some(stages) })
    }

    /// Returns [`DefaultContext::Modest`] of a model trained with `trained` tokens; 0 if its file
    /// does not specify it.
    pub(crate) fn modest(trained: u32) -> u32 {
        let trained = if trained == 0 { DEFAULT_CONTEXT_TOKENS } else { trained };
        trained.clamp(2, DEFAULT_CONTEXT_TOKENS)
    }

    /// Returns the context without --context. Logs a message if memory makes it short.
    fn default_context(engine: &EngineArgs, weights: &Arc<LlamaModel>) -> u32 {
        let is_elsewhere = !engine.staged.rpc().is_empty();
        let batch = engine.max_batch_size;
        let needs = ContextNeeds::new(weights, engine.kv_type, batch, is_elsewhere);
        let needs = needs.with_kv_cells(engine.kv_cells);
        let context = needs.default_context();
        if engine.context.is_none() && needs.is_cut(context) {
            tracing::warn!(
                "the context is {context} tokens, as the cache of a longer one would take more \
                 than half of the free memory ({} MiB); --context sets another, and --kv-type q8_0 \
                 halves what it takes",
                needs.free_bytes.unwrap_or(0) >> 20
            );
        }
        context
    }

    /// Warns of a context that the model was not trained for.
    fn warn_beyond_training(context: u32, trained: u32) {
        if trained > 0 && context > trained {
            tracing::warn!(
                "--context {context} is more than the {trained} tokens that the model was trained \
                 for: expect nonsense beyond them. Leave --context away, or set {trained} at most."
            );
        }
    }

    fn connect(engine: &EngineArgs, sizes: (u32, u32)) -> anyhow::Result<Cluster> {
        let (context_tokens, kv_cells) = sizes;
        let args = &engine.staged;
        let (own_key, trust) = (Key::random()?, args.trust.trust()?);
        let batch = engine.max_batch_size;
        anyhow::ensure!(batch <= MAX_SLOTS, "--max-batch-size can be at most {MAX_SLOTS}");
        let options = ClusterOptions {
            addresses: args.addresses(&own_key, &trust, &engine.own_stage())?,
            own_stages: args.own_stages(),
            own_key,
            trust,
            dtype: args.stage_dtype,
            slots: batch.saturating_mul(2).min(MAX_SLOTS),
            kv_cells,
            context_tokens,
            // A stage refuses batches that cannot hold a row of every slot.
            batch_tokens: engine.batch_tokens(kv_cells).max(batch.saturating_mul(2).into()),
            kv_type: engine.kv_type,
            link: args.link(),
            stall_limit: Duration::from_secs_f64(args.stage_timeout_s),
            // Chosen by hand: a full batch of prompt tokens takes much longer than a ping.
            batch_limit: Duration::from_secs_f64(args.stage_timeout_s * 12.0),
        };
        let connected =
            Cluster::connect(options, |why| tracing::warn!("waiting for the stages: {why}"));
        Ok(connected?)
    }

    /// Describes the kernels of the matrix products, for people.
    fn kernels(weights: &LlamaModel) -> String {
        match Isa::used().filter(|_| weights.uses_own_kernels()) {
            Some(isa) => format!("Loquent's, for {}", isa.name()),
            None => match own_kernels_lack(weights.header()) {
                Some(why) => format!("llama.cpp's, because {why}"),
                // A flag has chosen them.
                None => "llama.cpp's".to_owned(),
            },
        }
    }

    /// Returns the KV cells for which `--gpu-layers auto` leaves room on a GPU.
    fn gpu_kv_cells(engine: &EngineArgs, path: &Path) -> anyhow::Result<u32> {
        // Without a GPU the runner checks the cache's size, when the weights are in memory.
        if !has_gpu() {
            return Ok(0);
        }
        let trained = inspect(path)?.header.model_number("context_length").unwrap_or(0);
        let trained = u32::try_from(trained).unwrap_or(u32::MAX);
        Ok(engine.sizes(trained.clamp(2, DEFAULT_CONTEXT_TOKENS))?.1)
    }

    /// Warns if a requested GPU is missing, or a present one is not used.
    fn warn_of_missing_gpu(wanted: GpuLayers) {
        if has_gpu() || wanted == GpuLayers::Count(0) {
            return;
        }
        let why = gpu::why_unused();
        match (wanted, why) {
            (GpuLayers::Auto, None) => {}
            (GpuLayers::Auto, Some(why)) => tracing::info!("{why}; see `loquent doctor`"),
            (asked, why) => {
                let why = why.unwrap_or_else(|| "no GPU was found".to_owned());
                tracing::warn!(
                    "--gpu-layers {asked}: {why}; everything is computed on the \
                                processor. `loquent doctor` says what is missing."
                );
            }
        }
    }

    fn threads_for(weights: &LlamaModel) -> NonZeroU16 {
        let small = weights.info().size_bytes < SMALL_MODEL_BYTES;
        if small { NonZeroU16::MIN } else { physical_cores() }
    }

    /// Creates the runner: for answers, embeddings or both, depending on the file and the flags.
    fn runner(
        engine: &EngineArgs,
        weights: &Arc<LlamaModel>,
        threads: NonZeroU16,
        sizes: (u32, u32),
    ) -> anyhow::Result<Box<dyn Runner>> {
        let EmbeddingTraits { pooling, is_causal } = weights.embedding_traits()?;
        let options = runner_options(engine, weights, threads, sizes)?;
        let embedder = |pooling| LlamaEmbedder::new(weights.clone(), &options, pooling);
        match (engine.embeddings, pooling) {
            (None, None) if !is_causal => bail!(
                "this model makes embeddings, and its file does not say how; set --embeddings \
                 mean, cls or last"
            ),
            (Some(pooling), _) | (None, Some(pooling)) if !is_causal => {
                Ok(Box::new(EmbeddingOnly(embedder(pooling)?)))
            }
            // Its file says that it was trained for embeddings.
            (None, Some(pooling)) => Ok(Box::new(EmbeddingOnly(embedder(pooling)?))),
            (Some(pooling), _) => {
                let embedder = embedder(pooling)?;
                Ok(Box::new(llama_runner(weights, &options)?.with_embedder(embedder)))
            }
            (None, None) => Ok(Box::new(llama_runner(weights, &options)?)),
        }
    }

    fn llama_runner(
        weights: &Arc<LlamaModel>,
        options: &RunnerOptions,
    ) -> anyhow::Result<LlamaRunner> {
        let mut runner = LlamaRunner::new(weights.clone(), options)?;
        // The first pass allocates buffers, which the first request should not wait for.
        runner.warm_up()?;
        Ok(runner)
    }

    fn runner_options(
        engine: &EngineArgs,
        weights: &LlamaModel,
        threads: NonZeroU16,
        (context_tokens, kv_cells): (u32, u32),
    ) -> anyhow::Result<RunnerOptions> {
        let batch = engine.max_batch_size;
        if batch > MAX_SLOTS {
            bail!("--max-batch-size can be at most {MAX_SLOTS} with llama.cpp");
        }
        let batch_tokens = engine.batch_tokens(kv_cells);
        let kv_unified = engine.tuning.kv_layout != Some(KvLayout::Split);
        let layout = SlotLayout::of(weights, kv_unified);
        let slots = cache_sizes::slots(batch, context_tokens, kv_cells, layout);
        if slots < batch {
            tracing::warn!(
                "with --kv-layout split, {kv_cells} KV cells hold {slots} sequences of \
                 {context_tokens} tokens; for a batch of {batch}, raise --kv-cells or lower \
                 --context"
            );
        }
        Ok(RunnerOptions {
            slots,
            kv_cells,
            context_tokens,
            batch_tokens,
            pass_tokens: batch_tokens.min(engine.tuning.micro_batch.unwrap_or(512)),
            threads: Some(threads),
            poll: engine.tuning.poll.unwrap_or(0),
            kv_type: engine.kv_type,
            kv_unified,
            flash_attention: match engine.tuning.flash_attention {
                None => FlashAttention::Auto,
                Some(Switch::On) => FlashAttention::On,
                Some(Switch::Off) => FlashAttention::Off,
            },
            saves_spans: engine.saves_spans,
        })
    }

    fn describe(
        name: Option<String>,
        weights: &Arc<LlamaModel>,
        path: &Path,
        engine: &EngineArgs,
        context_tokens: u32,
    ) -> anyhow::Result<ServedModel> {
        let vocab = LlamaVocab::new(weights.clone());
        let text = |token: Option<TokenId>| {
            let name = token.map(|token| vocab.name(token)).unwrap_or_default();
            String::from_utf8_lossy(name).into_owned()
        };
        let own = || model_name::of_file(path, weights.info().name.as_deref());
        let stated = &engine.chat_format;
        let template = stated.template.as_deref().or(weights.info().chat_template.as_deref());
        if template.is_none() && engine.embeddings.is_none() {
            warn_of_base_model();
        }
        let source = template.unwrap_or(CHATML);
        Ok(ServedModel {
            name: name.map_or_else(own, |name| model_name::one_line(&name)),
            end_tokens: end_tokens(&vocab),
            chat: Arc::new(ChatFormat {
                template: ChatTemplate::new(source)?,
                is_guessed: template.is_none(),
                variables: stated.variables.clone(),
                bos: text(vocab.bos()),
                eos: text(vocab.eos()),
            }),
            vocab: Arc::new(vocab),
            context_tokens,
            trained_context: trained_context(weights),
            facts: facts_of(weights.info()),
            defaults: sampling_defaults(weights.header(), engine.sampling),
            created_s: unix_time_s(),
            grammars: GrammarSource::default(),
            computed_by: computed_by(path, engine, source)?,
        })
    }

    fn facts_of(info: &ModelInfo) -> ModelFacts {
        // As `qwen3 0.6B Q4_K - Medium`, and `(guessed)` before the format of some files.
        let format = info.description.splitn(3, ' ').nth(2).unwrap_or_default();
        let format = format.trim_start_matches("(guessed) ").trim_start_matches("all ");
        let mut quantization = format.to_owned();
        for (word, letter) in [(" - Small", "_S"), (" - Medium", "_M"), (" - Large", "_L")] {
            quantization = quantization.replace(word, letter);
        }
        if quantization.starts_with("unknown") {
            quantization.clear();
        }
        ModelFacts {
            architecture: info.architecture.clone(),
            parameters: info.parameters,
            quantization,
            bytes: info.size_bytes,
        }
    }

    /// Returns an identifier of everything that influences the numbers of an answer: the model,
    /// by a hash of its files, and the computation.
    fn computed_by(path: &Path, engine: &EngineArgs, template: &str) -> anyhow::Result<String> {
        let model = hash_of(path).with_context(|| format!("cannot read {}", path.display()))?;
        let tuning = &engine.tuning;
        let computing = (tuning.kv_layout, tuning.flash_attention, tuning.kernels);
        let isa = Isa::available().map(Isa::name).collect::<Vec<_>>();
        let (kv_type, layers) = (&engine.kv_type, &engine.gpu_layers);
        let is_staged = engine.staged.is_wanted();
        let variables = &engine.chat_format.variables;
        Ok(format!(
            "{model} {kv_type} {layers} {computing:?} {isa:?} {is_staged} {variables:?} {template}"
        ))
    }

    /// Returns the context that the model was trained with, from its file: a model without weights
    /// has no other information.
    fn trained_context(weights: &LlamaModel) -> Option<u32> {
        let tokens = weights.header().model_number("context_length")?;
        u32::try_from(tokens).ok().filter(|&tokens| tokens > 0)
    }

    /// Warns that a model has no chat template: it answers conversations badly.
    fn warn_of_base_model() {
        tracing::warn!(
            "the model's file has no chat template, so this is probably a base model, which \
             continues text instead of answering: use /v1/completions, or a model whose name has \
             -it, -Instruct or -Chat. Conversations are written as ChatML, which it may not know."
        );
    }

    fn progress_bar() -> ProgressBar {
        let style = ProgressStyle::with_template("Loading {wide_bar} {pos}%");
        ProgressBar::new(100).with_style(style.expect("the template is constant"))
    }
}

impl EngineArgs {
    /// Returns the longest sequence and the KV cells, in tokens.
    pub(super) fn sizes(&self, default_context: u32) -> anyhow::Result<(u32, u32)> {
        let context = self.context.unwrap_or(default_context);
        anyhow::ensure!(context >= 2, "--context must be at least 2");
        let kv_cells = self
            .kv_cells
            .unwrap_or_else(|| cache_sizes::default_kv_cells(context, self.max_batch_size));
        anyhow::ensure!(kv_cells >= context, "--kv-cells must be at least --context ({context})");
        Ok((context, kv_cells))
    }

    /// Maximum tokens of one native decode: the prefill budget and a full batch of decode rows.
    fn batch_tokens(&self, kv_cells: u32) -> u32 {
        self.prefill_max_tokens().saturating_add(self.max_batch_size.into()).min(kv_cells)
    }
}
