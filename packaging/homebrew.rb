# Homebrew formula of the release's binaries; not tried in this repository's tests beyond its syntax.
class Loquent < Formula
  desc "Stream a language model to many users, over any network"
  homepage "@URL@"
  version "@VERSION@"
  license any_of: ["MIT", "Apache-2.0"]

  # @ARCHIVES@

  def install
    bin.install "loquent"
    man1.install Dir["man/*.1"]
    bash_completion.install "completions/loquent.bash" => "loquent"
    zsh_completion.install "completions/_loquent"
    fish_completion.install "completions/loquent.fish"
    doc.install "README.md", "CHANGELOG.md", "THIRD-PARTY.txt", "loquent.cdx.json"
  end

  service do
    run [opt_bin/"loquent", "serve"]
    keep_alive crashed: true
    log_path var/"log/loquent.log"
    error_log_path var/"log/loquent.log"
  end

  test do
    assert_match version.to_s, shell_output("#{bin}/loquent --version")
  end
end
