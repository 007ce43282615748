import{b as P}from"./chunk-J3TXAQ4B.js";import{a as z}from"./chunk-4PC5ZWBK.js";import{a,b as u,c as G}from"./chunk-FVHBRY3X.js";import{a as D}from"./chunk-BWZWJJRS.js";function F(s,t,e){let n=new C(s,t,e);return n.read(),n.reading()}var dt=/(?:(?!https?:\/\/|www\.)[^\\`$*_~!\[\]<&\n])+/y,ft=/(?:https?:\/\/|www\.)[!#-;=?-[\]-_a-~]*/y,mt=/(?:^|[^A-Za-z0-9])(?:h|ht|htt|https?:?\/?|w|ww|www)$/,pt=/<((?:https?:\/\/|mailto:)[^\s<>]*)>/y,gt=/<br ?\/?>/iy,bt=/<[^\s<>]*$/y,yt=/&(?:#(\d{1,7})|#[xX]([0-9a-fA-F]{1,6})|([a-zA-Z]{2,8}));/y,xt=/&#?[a-zA-Z0-9]{0,8}$/y,j=/[\p{P}\p{S}]/u,wt=/[!-/:-@[-`{-~]/,Et=/\(\s*(?:<([^<>\n]*)>|((?:[^\s()<>\\]|\\.|\((?:[^\s()\\]|\\.)*\))*))(?:\s+(?:"[^"]*"|'[^']*'|\([^()]*\)))?\s*\)/y,vt=/\n|^\(\s*\S+\s+[^"'(\s]/,kt=/\[([^[\]\n]{0,200})\]/y,Tt=/^\[[^[\]\n]{0,200}$/,Lt=200,St=2e3,It={amp:"&",lt:"<",gt:">",quot:'"',apos:"'",nbsp:" ",ndash:"–",mdash:"—",hellip:"…",copy:"©",times:"×",rarr:"→",larr:"←",le:"≤",ge:"≥",ne:"≠",deg:"°"},C=class{constructor(t,e,n){this.source=t;this.before=e;this.final=n;this.#n=t.length}source;before;final;#t=0;#e=[];#n;#i=new Set;read(){for(;this.#t<this.source.length;)this.#r();this.#f(({is:t})=>t==="bracket"),q(this.#e,0),this.#f(t=>t.is==="run"&&t.opens&&t.left>0)}reading(){for(let r of this.#e.toReversed())r.is==="whole"&&r.at<this.#n&&r.end>this.#n&&(this.#n=r.at);let t=this.#e.findIndex(({at:r})=>r>=this.#n),e=t<0?this.#e:this.#e.slice(0,t),n=t<0?[]:this.#e.slice(t),i=Bt(n,this.source.length);return{settled:y(e),length:this.#n,open:y(i)}}#r(){switch(this.source[this.#t]){case"\\":return this.#o();case"`":return this.#c();case"$":return this.#p();case"*":case"_":case"~":return this.#g(this.source[this.#t]);case"!":return this.source[this.#t+1]==="["?this.#x(!0):(this.#t+1===this.source.length&&this.#m(this.#t),this.#d(1));case"[":return this.#x(!1);case"]":return this.#L();case"<":return this.#T();case"&":return this.#E();case`
`:return this.#d(1);default:return this.#s()}}#s(){let t=this.#b(dt);if(t){this.#d(t[0].length);let l=mt.exec(t[0]);l&&this.#t===this.source.length&&this.#m(this.#t-l[0].length);return}let e=this.source[this.#t-1]??this.before;if(/[A-Za-z0-9]/.test(e))return this.#d(1);let n=this.#b(ft)?.[0]??"";this.#t+n.length===this.source.length&&this.#m(this.#t);let i=$t(n);if(i===0)return this.#d(1);let r=n.slice(0,i),o=r.startsWith("www.")?`https://${r}`:r;this.#y({is:"link",href:o,children:[{is:"text",text:r}]},i)}#o(){let t=this.source[this.#t+1];if(t===void 0)return this.#m(this.#t),this.#d(1);if(t==="(")return this.#l("\\(","\\)",!1);if(t==="[")return this.#l("\\[","\\]",!0);if(!wt.test(t))return this.#d(1);this.#y({is:"text",text:t},2)}#l(t,e,n){let i=this.#i.has(t)?-1:this.source.indexOf(e,this.#t+2);if(i>=0){let r=this.source.slice(this.#t+2,i);return this.#y({is:"math",text:r,display:n},i+2-this.#t)}this.#i.add(t),this.#m(this.#t),this.#d(2)}#p(){if(this.source.startsWith("$$",this.#t))return this.#l("$$","$$",!0);let t=this.#i.has("$")?null:this.#h();if(t!==null){let e=this.source.slice(this.#t+1,t);return this.#y({is:"math",text:e,display:!1},t+1-this.#t)}/[\s$]/.test(this.source[this.#t+1]??"x")||this.#m(this.#t),this.#d(1)}#h(){if(/[\s]/.test(this.source[this.#t+1]??" "))return null;for(let t=this.#t+2;(t=this.source.indexOf("$",t))>=0;t+=1){let[e,n]=[this.source[t-1]??"",this.source[t+1]??""];if(n===""&&!this.final)return null;if(!/[\s\\$]/.test(e)&&!/[\d$]/.test(n))return t}return this.final&&this.#i.add("$"),null}#c(){let t=this.#b(/`+/y)?.[0]??"`",e=this.#u(t);if(e!==null){let i=Ot(this.source.slice(this.#t+t.length,e));return this.#y({is:"code",text:i},e+t.length-this.#t)}if(this.final)return this.#d(t.length);this.#m(this.#t);let n=this.source.slice(this.#t+t.length).replace(/`+$/,"");this.#y(n===""?{is:"text",text:n}:{is:"code",text:n},this.source.length-this.#t)}#u(t){if(this.#i.has(t))return null;let e=/`+/g;e.lastIndex=this.#t+t.length;for(let n=e.exec(this.source);n;n=e.exec(this.source)){let i=!this.final&&e.lastIndex===this.source.length;if(n[0].length===t.length&&!i)return n.index}return this.final&&this.#i.add(t),null}#g(t){let e=this.#t,n=e;for(;this.source[n]===t;)n+=1;let i=e===0?this.before:this.source[e-1]??"",{opens:r,closes:o}=Mt(t,i,this.source[n]??"");n===this.source.length&&this.#m(e);let l=n-e;if(t==="~"&&l!==2)return this.#d(l);this.#e.push({is:"run",at:e,char:t,length:l,opens:r,closes:o,left:l}),this.#t=n}#x(t){this.#e.push({is:"bracket",at:this.#t,image:t,active:!0}),this.#t+=t?2:1}#L(){let t=this.#e.length-1;for(;t>=0&&this.#e[t]?.is!=="bracket";)t-=1;let e=this.#e[t];if(e?.is!=="bracket")return this.#d(1);if(!e.active)return this.#e[t]=B(e),this.#d(1);this.#t+=1;let n=this.#b(Et);if(n)return this.#I(e,t,n);if(!this.final&&this.#v())return this.#k(e,t);!e.image&&this.#S(e,t)||(this.#e[t]=B(e),this.#e.push(O(this.#t-1,"]")))}#S(t,e){let n=this.source.slice(t.at+1,this.#t-1),i=this.#b(kt),r=x(i?.[1]?.trim()?i[1]:n);if(r===null)return!1;let o=i?.[0]??"";return this.#t+=o.length,o===""&&r.startsWith("^")?(this.#e.splice(e),this.#e.push({is:"whole",at:t.at,end:this.#t,node:{is:"note",label:r},depth:0}),!0):(this.#a(t,e,l=>({is:"reference",label:r,children:l,tail:o})),!0)}#v(){let t=this.source.slice(this.#t);return t===""||Tt.test(t)?!0:t.startsWith("(")&&t.length<=St&&!vt.test(t)&&Wt(t)}#I(t,e,n){let i=_t(n[1]??n[2]??"");if(this.#t+=n[0].length,this.#w(t,e,i),!t.image)for(let r of this.#e)r.is==="bracket"&&!r.image&&(r.active=!1)}#k(t,e){this.#m(t.at);let n=this.#t===this.source.length;if(this.#t=this.source.length,!n)return this.#w(t,e,"");this.#e[e]=B(t),this.#e.push(O(this.#t-1,"]"))}#w(t,e,n){this.#a(t,e,i=>t.image?{is:"image",href:n,alt:f(i)}:{is:"link",href:n,children:i})}#a({at:t},e,n){q(this.#e,e+1);let i=this.#e.splice(e).slice(1),r=n(y(i));this.#e.push({is:"whole",at:t,end:this.#t,node:r,depth:1+K(i)})}#T(){let t=this.#b(pt);if(t?.[1]!==void 0){let n=t[1].replace(/^mailto:/,"");return this.#y({is:"link",href:t[1],children:[{is:"text",text:n}]},t[0].length)}let e=this.#b(gt);if(e)return this.#y({is:"break"},e[0].length);this.#b(bt)&&this.#m(this.#t),this.#d(1)}#E(){let t=this.#b(yt),e=t&&Ht(t);if(t&&e!==null)return this.#y({is:"text",text:e},t[0].length);this.#b(xt)&&this.#m(this.#t),this.#d(1)}#f(t){let e=this.#e.find(t);e&&this.#m(e.at)}#m(t){this.final||(this.#n=Math.min(this.#n,t))}#b(t){return t.lastIndex=this.#t,t.exec(this.source)}#d(t){this.#y({is:"text",text:this.source.slice(this.#t,this.#t+t)},t)}#y(t,e){this.#e.push({is:"whole",at:this.#t,end:this.#t+e,node:t,depth:0}),this.#t+=e}};function O(s,t){return{is:"whole",at:s,end:s+t.length,node:{is:"text",text:t},depth:0}}function B(s){return O(s.at,U(s))}function U({image:s}){return s?"![":"["}function Mt(s,t,e){let[n,i]=[t===""||/\s/.test(t),e===""||/\s/.test(e)],[r,o]=[j.test(t),j.test(e)],l=!i&&(!o||n||r),h=!n&&(!r||i||o);return s!=="_"?{opens:l,closes:h}:{opens:l&&(!h||r),closes:h&&(!l||o)}}function q(s,t){let e=new Map;for(let n=t;n<s.length;){let i=s[n];if(i?.is!=="run"||!i.closes||i.left===0){n+=1;continue}let r=`${i.char}${i.opens}${i.length%3}`,o=Nt(s,i,n,e.get(r)??t);o===null?(e.set(r,n),n+=1):(At(s,o,n,i),n=o+2)}}function Nt(s,t,e,n){for(let i=e-1;i>=n;i-=1){let r=s[i];if(r?.is!=="run"||r.char!==t.char||!r.opens||r.left===0)continue;if(!((r.closes||t.opens)&&(r.length+t.length)%3===0)||r.length%3===0&&t.length%3===0)return i}return null}function At(s,t,e,n){let i=s[t],r=i.left>=2&&n.left>=2?2:1,o=s.slice(t+1,e);i.left-=r,n.left-=r;let l=n.at+n.length-n.left;s.splice(t+1,e-t-1,Y(i,r,o,l))}function Y(s,t,e,n){let i=1+K(e),r=y(e),o=s.char==="~"?"strike":t===2?"strong":"emphasis",l=s.char.repeat(t),h={is:"text",text:l+f(r)+l},c=i>12;return{is:"whole",at:s.at+s.left,end:n,node:c?h:{is:o,children:r},depth:c?0:i}}function K(s){return s.reduce((t,e)=>e.is==="whole"?Math.max(t,e.depth):t,0)}function Bt(s,t){let e=[...s],n=e.at(-1);n?.is==="run"&&n.left>0&&n.at+n.length===t&&e.pop();for(let i=e.length-1;i>=0;i-=1){let r=e[i];if(r?.is!=="run"||!r.opens||r.left===0||r.left>3||t-r.at>300)continue;let o=e.splice(i+1),l=Math.min(r.left,2);r.left=0,o.length>0&&e.push(Y(r,l,o,t))}return e}function y(s){let t=[];for(let e of s){let n=t.at(-1),i=e.is==="whole"?e.node:{is:"text",text:Ct(e)};i.is==="text"&&n?.is==="text"?t[t.length-1]={is:"text",text:n.text+i.text}:(i.is!=="text"||i.text!=="")&&t.push(i)}return t}function Ct(s){return s.is==="run"?s.char.repeat(s.left):U(s)}function f(s){return s.map(t=>"text"in t?t.text:t.is==="note"?`[${t.label}]`:t.is==="reference"?`[${f(t.children)}]${t.tail}`:"children"in t?f(t.children):t.is==="image"?t.alt:`
`).join("")}function x(s){let t=s.trim().replace(/\s+/g," ").toLowerCase();return t===""||t==="^"||t.length>Lt||/[[\]]/.test(t)?null:t}function Ot(s){let t=s.replaceAll(`
`," ");return t.length>2&&t.startsWith(" ")&&t.endsWith(" ")&&t.trim()!==""?t.slice(1,-1):t}function _t(s){return s.replace(/\\([!-/:-@[-`{-~])/g,"$1")}function $t(s){let t=s.length;for(;t>0;){let e=s[t-1]??"";if(!(/[.,;:!?'*_~\]]/.test(e)||e===")"&&!Rt(s.slice(0,t))))break;t-=1}return/^(?:https?:\/\/|www\.)./.test(s.slice(0,t))?t:0}function Wt(s){return s.split("(").length>s.split(")").length}function Rt(s){return s.split("(").length>=s.split(")").length}function Ht([,s,t,e]){if(e!==void 0)return It[e]??null;let n=s!==void 0?Number.parseInt(s,10):Number.parseInt(t??"",16);return n>0&&n<=1114111&&(n<55296||n>57343)?String.fromCodePoint(n):"�"}var Z=1e3,X=16,V=50,Pt=60,Gt=/^(`{3,}|~{3,})\s*([^\s`]*)[^`]*$/,zt=/^(?:(?:\*[ \t]*){3,}|(?:-[ \t]*){3,}|(?:_[ \t]*){3,})$/,Dt=/^(?:(?:\*[ \t]*)+|(?:-[ \t]*)+|(?:_[ \t]*)+)$/,jt=/^(?:([-*+])|(\d{1,9})([.)]))(?=[ \t]|$)/,qt=/^(?:[-*+]|\d{1,9}[.)]?)$/,Ft=/^\[([ xX])\][ \t]/,Ut=/^\[(?:[ xX](?:\][ \t]?)?)?$/,Yt=/^(#{1,6})(?:[ \t]+|$)/,Kt=/^\|?[ \t]*:?-+:?[ \t]*(?:\|[ \t]*:?-+:?[ \t]*)*\|?[ \t]*$/,Xt=/^[ \t|:-]+$/,Jt=/^\[([^[\]\n]{1,200})\]:[ \t]*(?:<([^<>\s]*)>|(\S+))(?:[ \t]+(?:"[^"]*"|'[^']*'|\([^()]*\)))?[ \t]*$/,Qt=/^\[(\^[^[\]\s]{1,200})\]:[ \t]*/,Zt=/^\[[^[\]\n]{0,200}(?:\](?::.*)?)?$/,Vt=/^\[(?:\^(?:[^[\]\s]{0,200}(?:\](?::[ \t]*)?)?)?)?$/,w=class{#t;#e=[];#n=null;#i="";#r=!1;#s=!1;#o=!1;constructor(t){this.#t=t}write(t){this.#i+=t.replaceAll("\r","").replaceAll("\0","�"),this.#l(!1)}end(){this.#l(!0),this.#r&&this.#h(),this.#f(0)}#l(t){for(;this.#i!=="";){if(this.#r){this.#p();continue}let e=this.#i.indexOf(`
`),n=e<0?this.#i:this.#i.slice(0,e),i=e>=0||t||n.length>Z,r=this.#u(n,i);if(r==="wait"||(this.#i=this.#i.slice(r.used),this.#r=!0,t&&this.#i===""))return}}#p(){let t=this.#i.indexOf(`
`),e=t<0?this.#i:this.#i.slice(0,t);this.#i=t<0?"":this.#i.slice(t+1),e!==""&&this.#c(e),t>=0&&this.#h()}#h(){this.#r=!1;let[t,e]=[this.#n,this.#o];this.#o=!1,t?.is==="heading"&&this.#E(),!e&&(t?.is==="code"&&this.#t.text(`
`),t?.is==="table"&&this.#a(t),t?.is==="math"&&this.#v(t,`
`))}#c(t){let e=this.#n;e===null?t.trim()!==""&&this.#T(t.trimStart()):e.is==="table"?this.#I(e,t):e.is==="math"?this.#v(e,t):e.is==="held"?this.#T(e.line+t):(e.is==="paragraph"&&e.first!==null&&(e.first=J(e.first+t)),this.#t.text(t))}#u(t,e){let n=this.#g(t,e);if(n==="wait")return"wait";let i=n.count===this.#e.length,r=this.#n;if(i&&r?.is==="code")return this.#L(r,t,n.at,e);if(i&&r?.is==="math")return this.#S(r,t,n.at,e);if(t.slice(n.at).trim()==="")return e?this.#x(t,n.count):"wait";let l=new _(this,t,n.at,n.count,e).read();return l!=="wait"&&(this.#s=!1),l}#g(t,e){let[n,i]=[0,0];for(;i<this.#e.length;i+=1){let r=this.#e[i],o=E(t,n),l=n+o.length===t.length;if(r?.is!=="list"){if(l&&!e)return"wait";if(r?.is==="quote"){if(o.columns>3||t[n+o.length]!==">")break;n+=o.length+1,t[n]===" "&&(n+=1)}else if(r?.is==="item"){if(l)continue;if(o.columns<r.least)break;n+=Q(t,n,r.content)}}}return i>0&&i<this.#e.length&&this.#e[i-1]?.is==="list"&&(i-=1),{count:i,at:n}}#x(t,e){this.#n!==null&&this.#E();let i=this.#e.findIndex((r,o)=>o>=e&&r.is==="quote");return i>=0&&this.#f(i),this.#s=!0,{used:t.length}}#L(t,e,n,i){let r=e.slice(n),o=t.fence[0]??"`",l=r.trim(),h=l!==""&&l===o.repeat(l.length)&&E(r,0).columns<=3;return h&&i&&l.length>=t.fence.length?(this.#E(),{used:e.length}):!i&&(h||l==="")?"wait":{used:n+Q(e,n,t.indent)}}#S(t,e,n,i){let r=e.slice(n).trim()==="";return r&&!i?"wait":(t.lines+=1,!r&&t.lines<=Pt?{used:n}:(this.#E(),{used:r?e.length:n}))}#v(t,e){let n=t.tail+e,i=n.indexOf(t.end);if(i<0){let o=n.endsWith(t.end[0]??"$")?1:0;this.#t.text(n.slice(0,n.length-o)),t.tail=n.slice(n.length-o);return}this.#t.text(n.slice(0,i)),this.#n=null,this.#t.close(!0);let r=n.slice(i+t.end.length);r!==""&&this.#c(r)}#I(t,e){let n=t.escape+e;t.escape=n.endsWith("\\")?"\\":"";for(let i of n.slice(0,n.length-t.escape.length).split(/(\\?\|)/))if(i==="|"&&t.column<V)this.#w(t);else if(i!==""){let r=i==="\\|"?"|":i,o=t.inCell?r:r.trimStart();if(o==="")continue;t.inCell||this.#k(t,!1),this.#t.text(o)}}#k(t,e){this.#t.open({is:"cell",head:e,align:t.aligns[t.column]??null}),t.inCell=!0}#w(t){t.inCell||this.#k(t,!1),this.#t.close(),t.inCell=!1,t.column+=1}#a(t){t.inCell&&this.#w(t),this.#t.close(),t.column=0,t.escape=""}#T(t){this.#n={is:"paragraph",first:J(t)},this.#t.open({is:"paragraph"}),this.#t.text(t)}#E(){let t=this.#n;this.#n=null,t?.is==="held"&&(this.#T(t.line),this.#n=null),t?.is==="math"&&t.tail!==""&&this.#t.text(t.tail),t!==null&&this.#t.close(t.is!=="math")}#f(t){for(this.#n!==null&&this.#E();this.#e.length>t;)this.#e.pop(),this.#t.close()}get containers(){return this.#e}get leaf(){return this.#n}closeTo(t){this.#f(t)}openQuote(t){this.#f(t),this.#e.push({is:"quote"}),this.#t.open({is:"quote"})}openItem(t,e,n,i){let r=this.#e[t],o=r?.is==="list"&&r.marker===e;this.#f(o?t+1:t),o&&this.#s&&this.#t.loosen(),o||(this.#e.push({is:"list",marker:e}),this.#t.open({is:"list",start:n})),this.#e.push(i)}showItem(t){this.#t.open({is:"item",checked:t})}openLeaf(t,e,n){this.#f(t),this.#n=e,this.#o=e.is==="code",this.#t.open(n)}rule(t){this.#f(t),this.#t.rule()}define(t,e,n){this.#f(t),this.#t.define(e,n)}becomeHeading(t){this.#t.becomeHeading(t),this.#n={is:"heading"}}hold(t,e){this.#f(t),this.#n={is:"held",line:e}}goOn(t){let e=this.#n;if(e?.is==="held"&&this.#T(e.line),this.#n?.is==="paragraph"){this.#n.first=null,this.#t.text(`
`);return}this.openLeaf(t,{is:"paragraph",first:""},{is:"paragraph"})}openTable(t,e){this.#n?.is==="paragraph"&&this.#t.drop(),this.#n={is:"table",aligns:e,column:0,inCell:!1,escape:""},this.#o=!0,this.#t.open({is:"table"}),this.#t.open({is:"row"});for(let[n,i]of $(t).entries())this.#t.open({is:"cell",head:!0,align:e[n]??null}),this.#t.text(i),this.#t.close();this.#t.close()}openRow(){this.#t.open({is:"row"})}},_=class{constructor(t,e,n,i,r){this.reader=t;this.line=e;this.at=n;this.matched=i;this.isWhole=r;this.#e=i}reader;line;at;matched;isWhole;#t=[];#e;read(){for(;;){let t=this.#n();if(t==="wait")return"wait";if(t!=="more"){for(let e of this.#t)e();return{used:this.at}}}}#n(){let t=E(this.line,this.at),e=this.at+t.length,n=this.line.slice(e);if(n==="")return this.isWhole?this.#a(e):"wait";if(t.columns<4||this.#i){let i=this.#l(n,e,t.columns);if(i!==null)return i}return this.#w(n,e)}get#i(){return this.#t.length>0}get#r(){return this.#i?null:this.reader.leaf}get#s(){return!this.#i&&this.matched===this.reader.containers.length}get#o(){let t=this.#r;return t?.is==="paragraph"||t?.is==="held"}#l(t,e,n){return this.#p(t,e)??this.#c(t,e)??this.#u(t,e)??this.#g(t,e)??this.#x(t,e)??this.#L(t,n)??this.#S(t,e)??this.#v(t,e)??this.#I(t,e,n)}#p(t,e){let n=this.#r;if(n?.is==="table"&&this.#s)return this.#h(t,e);let i=n?.is==="held"?n.line:n?.is==="paragraph"?n.first:null;if(i===null||!i.includes("|")||!this.#s||!/^[|:-]/.test(t))return null;if(!this.isWhole&&Xt.test(t))return"wait";if(!this.isWhole||!Kt.test(t))return null;let r=$(t).map(te);return r.length!==$(i).length||r.length>V?null:(this.#t.push(()=>this.reader.openTable(i,r)),this.#a(this.line.length))}#h(t,e){if(!t.startsWith("|")){if(!this.isWhole)return"wait";if(!t.includes("|"))return null}return this.#t.push(()=>this.reader.openRow()),this.#a(t.startsWith("|")?e+1:e)}#c(t,e){return this.#r?.is!=="paragraph"||!this.#s?null:!this.isWhole&&/^(?:=+|-+)[ \t]*$/.test(t)?"wait":!this.isWhole||!/^(?:=+|-{2,})[ \t]*$/.test(t)?null:(this.#t.push(()=>this.reader.becomeHeading(t.startsWith("=")?1:2)),this.#a(e+t.length))}#u(t,e){if(!t.startsWith(">")||this.#e>=X)return null;let n=this.#e;return this.#t.push(()=>this.reader.openQuote(n)),this.#e+=1,this.at=e+(t[1]===" "?2:1),"more"}#g(t,e){if(!t.startsWith("#"))return null;if(!this.isWhole&&/^#{1,6}[ \t]*$/.test(t))return"wait";let n=Yt.exec(t);if(!n)return null;let[i,r]=[this.#e,n[1]?.length??1];return this.#t.push(()=>this.reader.openLeaf(i,{is:"heading"},{is:"heading",level:r})),this.#a(e+n[0].length)}#x(t,e){let n=this.#r,i=n?.is==="paragraph"&&n.isNote===!0;if(!t.startsWith("[")||this.#o&&!i)return null;if(!this.isWhole&&Vt.test(t))return"wait";let[r,o]=[this.#e,Qt.exec(t)],l=o&&x(o[1]??"");if(o&&l!==null)return this.#t.push(()=>this.reader.openLeaf(r,{is:"paragraph",first:null,isNote:!0},{is:"note",label:l})),this.#a(e+o[0].length);if(!this.isWhole)return Zt.test(t)?"wait":null;let h=Jt.exec(t),c=h&&x(h[1]??"");return!h||c===null?null:(this.#t.push(()=>this.reader.define(r,c,h[2]??h[3]??"")),this.#a(this.line.length))}#L(t,e){if(!/^(?:``?$|~~?$|```|~~~)/.test(t))return null;if(!this.isWhole&&/^(?:`+[^`]*|~+.*)$/.test(t))return"wait";let n=Gt.exec(t);if(!n||!this.isWhole)return null;let[i,r="```",o=""]=[this.#e,n[1],n[2]],l={is:"code",language:o.slice(0,40)};return this.#t.push(()=>this.reader.openLeaf(i,{is:"code",fence:r,indent:e},l)),this.#a(this.line.length)}#S(t,e){if(!this.isWhole&&(t==="$"||t==="\\"))return"wait";let n=t.startsWith("$$")?"$$":t.startsWith("\\[")?"\\[":null;if(n===null)return null;let[i,r]=[this.#e,n==="$$"?"$$":"\\]"],o={is:"math",end:r,tail:"",lines:1};return this.#t.push(()=>this.reader.openLeaf(i,o,{is:"math"})),this.#a(e+2)}#v(t,e){if(!this.isWhole)return Dt.test(t)?"wait":null;if(!zt.test(t))return null;let n=this.#e;return this.#t.push(()=>this.reader.rule(n)),this.#a(e+t.length)}#I(t,e,n){if(!this.isWhole&&qt.test(t))return"wait";let i=jt.exec(t);if(!i||this.#e+2>X)return null;let r=i[2]===void 0?null:Number.parseInt(i[2],10),o=t.slice(i[0].length),l=o.trim()==="";if(l&&!this.isWhole)return"wait";let h=!this.#i&&this.reader.containers[this.#e]?.is==="list";if(this.#o&&!h&&(l||r!==null&&r!==1))return null;let c=Ft.exec(o.trimStart());if(!this.isWhole&&Ut.test(o.trimStart()))return"wait";this.#k(i,n,r,c?c[1]!==" ":null);let A=E(o,0),ut=A.columns>4?1:A.length;return this.at=e+i[0].length+(c?A.length+c[0].length:ut),l?this.#a(this.line.length):"more"}#k(t,e,n,i){let[r,o]=[this.#e,t[0].length],l=t[1]??t[3]??".",h={is:"item",least:e+2,content:e+o+1};this.#t.push(()=>{this.reader.openItem(r,l,n,h),this.reader.showItem(i)}),this.#e+=2}#w(t,e){if(t.startsWith("|")&&!this.#o){if(!this.isWhole)return"wait";let r=this.#e;return this.#t.push(()=>this.reader.hold(r,t)),this.#a(this.line.length)}let i=this.#e;return this.#t.push(()=>this.reader.goOn(i)),this.#a(e)}#a(t){return this.at=t,"done"}};function J(s){return s.length<=Z?s:null}function E(s,t){let[e,n]=[0,0];for(;s[t+e]===" "||s[t+e]==="	";e+=1)n+=s[t+e]==="	"?4:1;return{length:e,columns:n}}function Q(s,t,e){let[n,i]=[0,0];for(;i<e&&(s[t+n]===" "||s[t+n]==="	");)i+=s[t+n]==="	"?4:1,n+=1;return n}function $(s){return s.trim().replace(/^\|/,"").replace(/(?<!\\)\|$/,"").split(/(?<!\\)\|/).map(e=>e.trim().replaceAll("\\|","|"))}function te(s){let[t,e]=[s.startsWith(":"),s.endsWith(":")];return t&&e?"center":e?"right":t?"left":null}var d=null,tt=0,ee=0,m,v=new Map,k=new Set;function nt(s,t){let e=ne();if(e===null)return null;let n=ee++;return v.set(n,t),it(e,{is:"open",block:n,language:s}),{append:i=>et(e,n,{is:"text",block:n,text:i}),end:()=>et(e,n,{is:"end",block:n})}}function et(s,t,e){s===d&&(k.add(t),m??=setTimeout(W,4e3),it(s,e))}function it(s,t){s.postMessage(t)}function ne(){if(d!==null||tt>=3)return d;tt+=1;try{d=new Worker(new URL("./highlight_worker-SJEIHS7H.js",import.meta.url),{type:"module",name:"highlight"})}catch{return null}return d.onmessage=({data:s})=>ie(s),d.onerror=W,d}function ie({block:s,lines:t,isOver:e}){clearTimeout(m),k.delete(s),m=k.size>0?setTimeout(W,4e3):void 0;let n=v.get(s);for(let[i,r]of t)n?.(i,r);e&&v.delete(s)}function W(){clearTimeout(m),m=void 0,d?.terminate(),d=null,k.clear(),v.clear()}var se=[["bash","Bash","sh","shell","zsh","console","shell-session"],["c","C","h"],["cpp","C++","c++","cc","hpp","cxx"],["csharp","C#","cs","c#"],["css","CSS"],["diff","Diff","patch"],["dockerfile","Dockerfile","docker"],["elixir","Elixir","ex","exs"],["go","Go","golang"],["graphql","GraphQL","gql"],["haskell","Haskell","hs"],["ini","TOML","toml","cfg"],["java","Java"],["javascript","JavaScript","js","jsx","mjs","cjs","node"],["json","JSON","jsonc","json5","jsonl"],["julia","Julia","jl"],["kotlin","Kotlin","kt"],["latex","LaTeX","tex"],["lua","Lua"],["makefile","Makefile","make","mk"],["markdown","Markdown","md"],["nginx","nginx"],["perl","Perl","pl"],["php","PHP"],["powershell","PowerShell","ps1","pwsh"],["python","Python","py","python3","ipython"],["r","R"],["ruby","Ruby","rb"],["rust","Rust","rs"],["scala","Scala"],["scss","SCSS","sass"],["sql","SQL","postgresql","mysql","sqlite"],["swift","Swift"],["typescript","TypeScript","ts","tsx","mts"],["wasm","WebAssembly","wat"],["xml","HTML","html","svg","xhtml","vue"],["yaml","YAML","yml"]],re=new Set(["","text","txt","plain","plaintext","none","output"]),st=new Map;for(let[s,t,...e]of se)for(let n of[s,...e])st.set(n,{id:s,name:t});function rt(s){let t=s.toLowerCase();return re.has(t)?{id:null,name:"Text"}:st.get(t)??null}var ot=4e3,oe=15e4,le=1600,ae=["","keyword","string","number","comment","title","type","meta","added","removed"],T=class{constructor(t,e){this.budget=e;let n=rt(t),i=a("pre");i.tabIndex=0,i.setAttribute("role","group"),i.setAttribute("aria-label",n?`Code, ${n.name}`:"Code"),i.dir="ltr",i.append(this.#t),this.element.append(this.#p(n?.name??t),i),n?.id&&(this.#l=nt(n.id,(r,o)=>this.#x(r,o)))}budget;element=a("figure","code");#t=a("code");#e=[];#n=[];#i=0;#r=0;#s="";#o=[];#l=null;append(t){this.#e.push(t),this.#i+=t.length,this.#s+=t}flush(){if(this.#s==="")return;let t=this.#s;this.#s="";for(let[e,n]of t.split(`
`).entries())e>0&&(this.#r+=1),n!==""&&this.#c(n);this.#i>oe&&this.#g(),this.#l?.append(t)}end(){this.flush(),this.#l?.end()}mark(t){let e=this.#n.at(-1);e&&this.#o.push({mark:t,box:e.box,at:e.text.length}),(e?.box??this.#t).append(t)}get source(){return this.#e.join("").replace(/\n$/,"")}#p(t){let e=a("figcaption"),n=u(a("button","copy"),"Copy");return n.type="button",n.addEventListener("click",()=>{this.#h(n)}),e.append(u(a("span","language"),t||"text"),n),e}async#h(t){t.textContent=await D(this.source)?"Copied":"Could not copy",setTimeout(()=>t.textContent="Copy",le)}#c(t){for(;this.#r>0;this.#r-=1)this.#u("line");let e=this.#n.at(-1)??this.#u("line");for(let n=t;n!=="";){let i=ot-e.text.length;if(i<=0){this.#g(),e=this.#u("line more");continue}let r=n.slice(0,i);n=n.slice(i),e.text+=r;let o=e.box.lastChild;o instanceof Text?o.appendData(r):e.box.append(r)}}#u(t){let e=this.#n.at(-1);if(e&&!this.budget.spend()&&e.text.length<ot)return e.text+=`
`,e.box.append(`
`),e;let n={box:a("span",t),text:""};return this.#n.push(n),this.#t.append(n.box),n}#g(){this.#l?.end(),this.#l=null}#x(t,e){let n=this.#n[t];if(n===void 0||this.#l===null)return;let i=[],r=0;for(let o=0;o+2<e.length;o+=3){let[l=0,h=0,c=0]=e.slice(o,o+3);l>r&&i.push(n.text.slice(r,l)),i.push(u(a("span",ae[c]??""),n.text.slice(l,h))),r=h}n.box.replaceChildren(...i,n.text.slice(r));for(let{mark:o,box:l,at:h}of this.#o)l===n.box&&he(l,h,o)}};function he(s,t,e){let n=t;for(let i of[...s.childNodes]){let r=i.textContent?.length??0;if(n<=r){let o=i instanceof Text&&n<r;s.insertBefore(e,o?i.splitText(n):i.nextSibling);return}n-=r}s.append(e)}var ce=new Set(["http:","https:","mailto:"]);function ue(s){if(s.length>2e3||!/^[a-z]+:/i.test(s))return null;try{let t=new URL(s);return ce.has(t.protocol)?t.href:null}catch{return null}}function p(s){let t=ue(s);if(t===null)return null;let e=document.createElement("a");return e.href=t,e.rel="noopener noreferrer",e.target="_blank",e.title=t,e}var de="http://www.w3.org/1998/Math/MathML",fe=new Set("math semantics mrow mi mn mo ms mspace mtext mfrac msqrt mroot mstyle merror mpadded mphantom menclose msub msup msubsup munder mover munderover mmultiscripts mprescripts none mtable mtr mtd mlabeledtr".split(" ")),me=new Set("display displaystyle scriptlevel mathvariant mathcolor mathbackground mathsize stretchy symmetric largeop movablelimits fence separator lspace rspace minsize maxsize accent accentunder linethickness width height depth voffset form columnalign rowalign columnspacing rowspacing columnlines rowlines columnspan rowspan notation dir side".split(" ")),pe=/^(?:padding|margin|border|color|background-color|width|height|vertical-align|text-align|font-size|font-weight|display|white-space|position|top|left|bottom|right|transform|math-style|math-depth|math-shift|line-height)(?:-[a-z-]+)?$/,ge=60,be=4e3,g=[],lt=null,R=!1;function L(s,t,e){t.trim()===""||t.length>3e3||g.length>=2e3||(g.push({target:s,source:t,display:e}),R||ye())}async function ye(){R=!0,lt??=xe();let s=await lt;for(;g.length>0;){await new Promise(e=>requestAnimationFrame(e));let t=performance.now()+8;for(;g.length>0&&performance.now()<t;)we(s,g.shift())}R=!1}async function xe(){try{let{default:s}=await import("./temml-HXT562GL.js"),t={throwOnError:!0,strict:!1,trust:!1,maxExpand:200,maxSize:[20,20]};return(e,n)=>s.__renderToMathMLTree(e,{...t,displayMode:n})}catch{return null}}function we(s,t){if(s===null||t===void 0)return;let{target:e,source:n,display:i}=t;try{let r=new H().build(s(n,i),0);r instanceof Element&&r.setAttribute("aria-label",n.trim()),e.replaceChildren(r),e.classList.add("set")}catch{e.classList.add("unset")}}var H=class{#t=0;build(t,e){if(this.#t+=1,e>ge||this.#t>be)throw new RangeError("too large a formula");if(t.text!==void 0&&t.type===void 0)return document.createTextNode(String(t.text));let n=Ee(t);for(let i of t.children??[])n.append(this.build(i,e+1));return n}};function Ee(s){if(s.type===void 0&&s.attributes===void 0)return document.createDocumentFragment();let t=s.type??"span";if(s.type!==void 0&&!fe.has(t))throw new TypeError(`no ${t} in formulas`);let e=s.type===void 0?document.createElement("span"):document.createElementNS(de,t),n=(s.classes??[]).filter(i=>/^[a-z][a-z-]*$/.test(i));n.length>0&&e.setAttribute("class",n.join(" "));for(let[i,r]of Object.entries(s.attributes??{}))me.has(i)&&String(r).length<100&&e.setAttribute(i,String(r));return ve(e,s.style??{}),e}function ve(s,t){if("style"in s)for(let[e,n]of Object.entries(t)){let i=e.replace(/[A-Z]/g,o=>`-${o.toLowerCase()}`),r=String(n);pe.test(i)&&/^[\w\s.%#(),+*-]{0,100}$/.test(r)&&s.style.setProperty(i,r)}}var ke=2e3,Te=6e3,S=class{constructor(t,e){this.element=t;this.shared=e;this.#t=t}element;shared;#t;#e=0;#n="";#i=[];#r="";#s=[];append(t){this.#n+=t}flush(t){if(this.#n===""&&this.#i.length===0)return;let e=this.#n.length>ke,{settled:n,length:i,open:r}=F(this.#n,this.#r,t||e);for(let o of[...this.#i,...this.#s])o.parentNode?.removeChild(o);this.#l(n,i),this.#i=r.map(o=>this.#h(o,!1)),this.#t.append(...this.#i),this.#o()}mark(t){this.#s.push(t),this.#o()}#o(){if(this.#s.length===0)return;let t=String.fromCodePoint(this.#n.codePointAt(0)??32),e=this.#n===""||P(this.#r,t),[n]=this.#i;e&&n?.parentNode?n.parentNode.insertBefore(Le(this.#s),n):this.#t.append(...this.#s),e&&(this.#s=[])}#l(t,e){if(e!==0){this.#r=this.#n[e-1]??"",this.#n=this.#n.slice(e);for(let n of t){let i=this.#t.lastChild;n.is==="text"&&i instanceof Text?i.appendData(n.text):this.#t.append(this.#h(n,!0))}this.#e+=e,this.#e>Te&&this.#p()}}#p(){this.#t=a("span","box"),this.#e=0,this.element.append(this.#t)}#h(t,e){if(t.is==="text"||!this.shared.spend())return document.createTextNode(f([t]));switch(t.is){case"code":return u(a("code"),t.text);case"math":return this.#u(t,e);case"break":return a("br");case"emphasis":return this.#c(a("em"),t.children,e);case"strong":return this.#c(a("strong"),t.children,e);case"strike":return this.#c(a("s"),t.children,e);case"link":return this.#c(p(t.href)??a("span","no-link"),t.children,e);case"reference":{let n=this.#c(a("span"),t.children,e);return this.shared.references.reference(t.label,n,t.tail,e)}case"note":return this.shared.references.mark(t.label,e);case"image":return u(p(t.href)??a("span","no-link"),`Image: ${t.alt||"without a description"}`)}}#c(t,e,n){for(let i of e)t.append(this.#h(i,n));return t}#u({text:t,display:e},n){let i=u(a("span",e?"math display":"math"),t);return n&&L(i,t,e),i}};function Le(s){let t=document.createDocumentFragment();return t.append(...s),t}var Se=1e3,Ie=5e3,I=class{#t=new Map;#e=new Map;#n=0;#i=0;reference(t,e,n,i){let r=a("span","reference");return r.append("[",e,`]${n}`),i&&this.#s(t,{whole:r,text:e}),r}mark(t,e){let n=u(a("span","reference"),`[${t}]`);return e&&this.#s(t,{whole:n,text:null}),n}define(t,e){this.#r(t,{is:"link",href:e})}defineNote(t,e){let n=this.#i+1;this.#r(t,{is:"note",element:e,number:n})&&(this.#i=n,e.append(u(a("sup"),String(n))," "))}#r(t,e){if(this.#t.has(t)||this.#t.size>=Se)return!1;this.#t.set(t,e);for(let n of this.#e.get(t)??[])at(n,e);return this.#e.delete(t),!0}#s(t,e){let n=this.#t.get(t);if(n)return queueMicrotask(()=>at(e,n));if(this.#n>=Ie)return;this.#n+=1;let i=this.#e.get(t);i?i.push(e):this.#e.set(t,[e])}};function at({whole:s,text:t},e){if(e.is==="note")return t===null?s.replaceChildren(Me(e)):void 0;let n=t===null||t.querySelector("a")?null:p(e.href);n===null||t===null||(n.append(...t.childNodes),s.replaceChildren(n))}function Me({element:s,number:t}){let e=u(a("button","note-mark"),String(t));e.type="button",e.setAttribute("aria-label",`Footnote ${t}`),e.addEventListener("click",()=>s.scrollIntoView({block:"center"}));let n=a("sup");return n.append(e),n}var Ne=2e4,Ae=8,Be=6,N=class{constructor(t){this.root=t}root;references=new I;#t=[];#e=0;#n=2;#i=null;#r=null;get isFull(){return this.#e>=Ne}spend(t=1){return this.#e+=t,!this.isFull}open(t){this.spend();let e=this.#l(t),n=this.#p(t);e.append(n.outer);let i={block:t,element:n.inner,writer:n.writer};this.#t.push(i),this.#r=i.writer??this.#r}close(t=!0){let n=this.#t.pop()?.writer;n?.is==="leaf"&&n.leaf.flush(!0),n?.is==="code"&&n.code.end(),n?.is==="math"&&(t?L(n.element,n.source,!0):n.element.className="plain")}text(t){let e=this.#t.at(-1)?.writer;e?.is==="leaf"&&e.leaf.append(t),e?.is==="code"&&e.code.append(t),e?.is==="math"&&(e.source+=t,e.element.append(t))}rule(){this.spend(),this.#s.append(a("hr"))}define(t,e){this.references.define(t,e)}becomeHeading(t){let e=this.#t.pop();if(e===void 0)return;e.writer?.is==="leaf"&&e.writer.leaf.flush(!0);let n=this.#g(t);n.append(...e.element.childNodes),e.element.replaceWith(n),this.#t.push({block:{is:"heading",level:t},element:n,writer:this.#u(n)})}drop(){this.#t.pop()?.element.remove()}loosen(){this.#s.classList.add("loose")}flush(){let t=this.#t.at(-1)?.writer;t?.is==="leaf"&&t.leaf.flush(!1),t?.is==="code"&&t.code.flush()}mark(t){this.flush();let e=this.#r;e?.is==="leaf"?e.leaf.mark(t):e?.is==="code"?e.code.mark(t):(e?.element??this.#o()).append(t)}get#s(){return this.#t.at(-1)?.element??this.#o()}#o(){return(this.#i===null||this.#i.childElementCount>=Ae)&&(this.#i=a("div","part"),this.root.append(this.#i)),this.#i}#l(t){let e=this.#s;if(t.is!=="row")return e;let n=e.childElementCount===0,i=e.lastElementChild;if(!n&&i?.localName==="tbody")return i;let r=a(n?"thead":"tbody");return e.append(r),r}#p(t){switch(t.is){case"paragraph":return this.#h(this.#t.at(-1)?.block.is==="item"?a("p"):b("p"));case"note":return this.#c(t.label);case"heading":return this.#h(this.#g(t.level));case"cell":return this.#h(_e(t));case"quote":return M(a("blockquote"));case"list":return M(Ce(t.start));case"item":return M(Oe(t.checked));case"row":return M(a("tr"));case"table":return $e();case"code":{this.spend(Be);let e=new T(t.language,this);return{outer:e.element,inner:e.element,writer:{is:"code",code:e}}}case"math":{let e=a("div","math display");return{outer:e,inner:e,writer:{is:"math",element:e,source:""}}}}}#h(t){return{outer:t,inner:t,writer:this.#u(t)}}#c(t){let e=b("p");e.className="note",this.references.defineNote(t,e);let n=a("span");return e.append(n),{outer:e,inner:n,writer:this.#u(n)}}#u(t){return{is:"leaf",leaf:new S(t,this)}}#g(t){this.#n=Math.min(t+2,this.#n+1,6);let e=b(`h${this.#n}`);return e.className=`level-${t}`,e}};function M(s){return{outer:s,inner:s,writer:null}}function b(s){let t=a(s);return t.dir="auto",t}function Ce(s){let t=b(s===null?"ul":"ol");return s!==null&&s!==1&&t.setAttribute("start",String(s)),t}function Oe(s){let t=a("li",s===null?"":"task");if(s===null)return t;let e=document.createElement("input");return e.type="checkbox",e.checked=s,e.disabled=!0,e.setAttribute("aria-label",s?"Done":"To do"),t.append(e),t}function _e({head:s,align:t}){let e=b(s?"th":"td");return s&&e.setAttribute("scope","col"),t!==null&&(e.className=`align-${t}`),e}function $e(){let s=a("div","table"),t=a("table");return s.tabIndex=0,s.setAttribute("role","group"),s.setAttribute("aria-label","Table"),s.append(t),{outer:s,inner:t,writer:null}}var ht=`/* Markdown: headings, lists, code, tables and formulas. */

:root {
  --code-keyword: light-dark(#8430a3, #d2a8ff);
  --code-string: light-dark(#1b6b3a, #9bd8a5);
  --code-number: light-dark(#a0480b, #f0b37e);
  --code-comment: light-dark(#696d74, #9299a4);
  --code-title: light-dark(#1f51b8, #8fb7ff);
  --code-type: light-dark(#0c6670, #7fd6d6);
  --code-meta: light-dark(#8a3b52, #f2a0b5);
  --code-added: light-dark(#1b6b3a, #9bd8a5);
  --code-removed: light-dark(#a3261e, #ff9c92);
}

.text .box {
  display: block;
}

.text :is(h3, h4, h5, h6) {
  margin: 1.4em 0 0.5em;
  font-weight: 650;
  line-height: 1.3;
  letter-spacing: -0.01em;
}

.part:first-child > :is(h3, h4, h5, h6):first-child {
  margin-top: 0;
}

.text .level-1 {
  font-size: 1.45rem;
}

.text .level-2 {
  font-size: 1.25rem;
}

.text .level-3 {
  font-size: 1.1rem;
}

.text :is(.level-4, .level-5, .level-6) {
  font-size: 1rem;
}

.text :is(ul, ol) {
  padding-inline-start: 1.6em;
}

.text li :is(ul, ol) {
  margin: 0.2em 0 0;
}

.text li {
  margin: 0.2em 0;
}

/* Each in its own direction, on the list's side. */
.text li > p {
  unicode-bidi: plaintext;
}

.text li::marker {
  color: var(--faint);
}

.text :is(li, blockquote) > * + :is(p, blockquote),
.text .loose > li + li {
  margin-top: 0.7em;
}

.text li.task {
  list-style: none;
  position: relative;
}

.text li.task > input[type="checkbox"] {
  position: absolute;
  inset-inline-start: -1.6em;
  width: 1.05em;
  height: 1.05em;
  margin: 0.3em 0 0;
  border: 1.5px solid var(--faint);
  border-radius: 0.3em;
  appearance: none;
}

.text li.task > input:checked {
  border-color: var(--accent);
  background: var(--accent);
}

.text li.task > input:checked::after {
  content: "";
  display: block;
  width: 0.3em;
  height: 0.58em;
  margin: 0.03em auto 0;
  border: solid var(--on-accent);
  border-width: 0 0.13em 0.13em 0;
  transform: rotate(42deg);
}

.text blockquote {
  padding: 0.1em 0 0.1em 1em;
  border-inline-start: 3px solid var(--line);
  color: var(--faint);
}

.text hr {
  height: 1px;
  margin: 1.6em 0;
  border: 0;
  background: var(--line);
}

.text a {
  color: var(--accent);
  text-decoration: underline;
  text-decoration-thickness: 0.06em;
  text-underline-offset: 0.18em;
}

.text .no-link {
  border-bottom: 1px dotted var(--faint);
}

.text :is(p, li, td, th, h3, h4, h5, h6) code {
  padding: 0.12em 0.35em;
  border-radius: 0.35em;
  background: var(--code);
  font: 0.875em/1.4 var(--mono);
}

/* Code */

.text figure.code {
  max-width: 100%;
  border: 1px solid var(--line);
  border-radius: var(--radius);
  background: var(--code);
  overflow: clip;
}

.text :is(li, blockquote) > :is(figure.code, .table, .math.display) {
  margin: 0.6em 0;
}

.code figcaption {
  display: flex;
  align-items: center;
  justify-content: space-between;
  min-height: 2.1rem;
  padding: 0 0.4rem 0 0.9rem;
  border-bottom: 1px solid var(--line);
  color: var(--faint);
  font-size: 0.78rem;
}

.code pre {
  margin: 0;
  padding: 0.75rem 0.9rem;
  overflow-x: auto;
  font: 0.85rem/1.6 var(--mono);
  white-space: pre;
  tab-size: 4;
}

.code pre:focus-visible {
  outline-offset: -2px;
}

.code pre > code {
  display: block;
  width: max-content;
  min-width: 100%;
  font: inherit;
}

.code .line {
  display: block;
  min-height: 1lh;
}

.code .keyword {
  color: var(--code-keyword);
}

.code .string {
  color: var(--code-string);
}

.code .number {
  color: var(--code-number);
}

.code .comment {
  color: var(--code-comment);
  font-style: italic;
}

.code .title {
  color: var(--code-title);
}

.code .type {
  color: var(--code-type);
}

.code .meta {
  color: var(--code-meta);
}

.code .added {
  color: var(--code-added);
}

.code .removed {
  color: var(--code-removed);
}

/* Tables */

.text .table {
  max-width: 100%;
  overflow-x: auto;
}

.text table {
  border-collapse: collapse;
  font-size: 0.93rem;
  font-variant-numeric: tabular-nums;
}

.text :is(th, td) {
  min-width: 3rem;
  max-width: 26rem;
  padding: 0.4rem 0.8rem 0.4rem 0;
  overflow-wrap: break-word;
  border-bottom: 1px solid var(--line);
  text-align: start;
  vertical-align: top;
}

.text th {
  border-bottom-color: var(--faint);
  font-weight: 600;
}

.text .align-center {
  text-align: center;
}

.text .align-right {
  text-align: end;
}

/* Formulas */

.text math {
  font-family: "Cambria Math", "STIX Two Math", "Latin Modern Math", "Noto Sans Math", math;
  font-size: 1.08em;
}

.text .math {
  position: relative;
}

.text .math:not(.set) {
  color: var(--faint);
  font: 0.9em var(--mono);
}

.text .math.display {
  display: block;
  max-width: 100%;
  padding: 0.3em 0;
  overflow: auto hidden;
  text-align: center;
  white-space: pre-wrap;
}

.text .tml-right {
  text-align: right;
}

.text .tml-left {
  text-align: left;
}

.text .note {
  color: var(--faint);
  font-size: 0.9rem;
}

.text .note-mark {
  min-width: 1.5rem;
  min-height: 1.5rem;
  padding: 0 0.2rem;
  border: 0;
  color: var(--accent);
  font-size: 0.8rem;
  line-height: 1;
}
`;z(ht);var ct=class{constructor(t){this.root=t;this.#t=new N(t),this.#e=new w(this.#t)}root;#t;#e;#n=null;write(t){this.#n===null&&this.#t.isFull&&(this.#e.end(),this.#n=new G(this.root)),this.#n?this.#n.write(t):this.#e.write(t)}flush(){this.#n===null&&this.#t.flush()}mark(t){this.#n?this.#n.mark(t):this.#t.mark(t)}end(){this.#n===null&&this.#e.end()}};export{ct as MarkdownSink};
